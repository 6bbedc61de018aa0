"""GGUF files as the gguf package writes them, and files that are broken."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from numpy.typing import NDArray
from tiny_models import GgufModel, bf16_bits
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.data_file import DataFile
from monolane.model.families.names import gguf_name, huggingface_name
from monolane.model.families.rope import read_rope
from monolane.model.gguf_file import read_gguf
from monolane.model.gguf_weights import open_gguf
from monolane.model.settings import Settings
from monolane.model.weights import check_weights, expected_shapes, to_bf16

Kind = gguf.GGMLQuantizationType
KINDS = [Kind[name] for name in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]]


def in_halves(values: NDArray[np.float32], head_dim: int = 64) -> NDArray[np.float32]:
    """Rows that a file has as pairs (0, 0'), (1, 1'), ... as the two halves 0, 1, ... and 0', 1', ..."""
    heads = values.reshape(-1, head_dim, *values.shape[1:])
    return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(values.shape)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_format_as_gguf_widens_it(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    model = GgufModel(kind=kind)
    config, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    check_weights(config, weights)
    assert weights.converted == (kind != Kind.BF16)
    for name, shape in expected_shapes(config):
        values = model.values(gguf_name(name))
        if name.endswith((".q", ".k")):
            values = in_halves(values)
        if len(shape) == 1:
            np.testing.assert_array_equal(weights.vector(name), values)
            continue
        np.testing.assert_array_equal(weights.rows(name, 0, shape[0]), to_bf16(values))
        for start, stop in ((0, 1), (5, 60), (31, 33), (63, 66)):
            np.testing.assert_array_equal(weights.rows(name, start, stop), to_bf16(values[start:stop]))


def test_large_matrix_is_read_in_blocks_without_seams(tmp_path: Path) -> None:
    model = GgufModel(kind=Kind.Q4_0)
    model.matrix("token_embd.weight", 1801, model.hidden)
    _, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    expected = to_bf16(model.values("token_embd.weight"))
    np.testing.assert_array_equal(weights.rows("embed", 0, 1801), expected)
    np.testing.assert_array_equal(weights.rows("embed", 511, 1700), expected[511:1700])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_config_and_values_as_transformers_reads_them(tmp_path: Path, architecture: str) -> None:
    model = GgufModel(architecture)
    model.metadata |= {"rope.dimension_count": 64, "attention.key_length": 64, "vocab_size": model.vocab}
    model.general = {"tokenizer.ggml.tokens": [f"t{index}" for index in range(model.vocab)]}
    path = model.write(tmp_path / "model.gguf")
    config, weights, _ = open_gguf(path)
    check_weights(config, weights)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file=path.name)
    empty = transformers.AutoModelForCausalLM.from_config(theirs)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty)["tensors"]
    for name, shape in expected_shapes(config):
        tensor = tensors[huggingface_name(name)]
        if len(shape) == 1:
            np.testing.assert_array_equal(weights.vector(name), tensor.numpy())
        else:
            np.testing.assert_array_equal(weights.rows(name, 0, shape[0]), bf16_bits(tensor))
    assert (config.hidden, config.ffn, config.layers) == (256, 512, 2)
    assert (config.hidden, config.ffn) == (theirs.hidden_size, theirs.intermediate_size)
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 64)
    assert (config.vocab, config.context) == (67, theirs.max_position_embeddings)
    assert config.norm_eps == pytest.approx(theirs.rms_norm_eps)
    assert config.rope.theta == theirs.rope_parameters["rope_theta"] == 50000.0
    assert config.tied
    assert config.qkv_bias == (architecture == "qwen2")
    assert config.qk_norm == (architecture == "qwen3")


def test_head_biases_and_rotated_biases(tmp_path: Path) -> None:
    model = GgufModel()
    model.matrix("output.weight", model.vocab, model.hidden)
    sizes = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 512, "ffn_up": 512}
    for layer in range(model.layers):
        for name, size in (sizes | {"ffn_down": 256}).items():
            model.vector(f"blk.{layer}.{name}.bias", size)
    config, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    check_weights(config, weights)
    assert not config.tied
    assert config.qkv_bias
    assert config.o_bias
    assert config.mlp_bias
    np.testing.assert_array_equal(weights.vector("layers.1.q.bias"), in_halves(model.values("blk.1.attn_q.bias")))
    np.testing.assert_array_equal(weights.vector("layers.1.k.bias"), in_halves(model.values("blk.1.attn_k.bias")))
    np.testing.assert_array_equal(weights.vector("layers.1.v.bias"), model.values("blk.1.attn_v.bias"))


def test_windows_and_rope_scaling(tmp_path: Path) -> None:
    model = GgufModel()
    model.metadata |= {"attention.sliding_window": 128, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    config = open_gguf(model.write(tmp_path / "linear.gguf"))[0]
    assert config.windows == (128, 128)
    assert config.rope.factors == (4.0,) * 32
    model = GgufModel()
    model.metadata |= {"attention.sliding_window": 0}
    factors = np.linspace(1.0, 32.0, 32, dtype=np.float32)
    model.tensors["rope_freqs.weight"] = (factors, Kind.F32)
    config = open_gguf(model.write(tmp_path / "freqs.gguf"))[0]
    assert config.windows == (None, None)
    assert config.rope.factors == tuple(factors.tolist())


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),  # no type means linear
        ({"rope.scaling.factor": 4}, 4.0),
        ({"rope.scale_linear": 8.0}, 8.0),  # the key of files from 2023
        ({"rope.scaling.type": "linear", "rope.scale_linear": 8.0}, 8.0),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 8.0}, 4.0),
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 8.0}, 1.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, 1.0),  # zero means 1
        ({"rope.scaling.type": "linear"}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.original_context_length": 512, "rope.scaling.finetuned": True}, 1.0),
        ({}, 1.0),
    ],
)
def test_linear_scaling_as_in_llama_cpp(tmp_path: Path, keys: dict[str, Any], scale: float) -> None:
    model = GgufModel()
    model.metadata |= keys
    plain = 50000.0 ** -(np.arange(0, 64, 2) / 64)
    rope = open_gguf(model.write(tmp_path / "model.gguf"))[0].rope
    np.testing.assert_allclose(rope.inverse_frequencies(64), plain / scale)
    # Factors of every pair come on top.
    factors = np.linspace(1.0, 32.0, 32, dtype=np.float32)
    model.tensors["rope_freqs.weight"] = (factors, Kind.F32)
    rope = open_gguf(model.write(tmp_path / "model.gguf"))[0].rope
    np.testing.assert_allclose(rope.inverse_frequencies(64), plain / scale / factors)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a.texts": ["one", "", "drei €"], "a.numbers": [1, -2, 3], "a.floats": [0.5, 2.0]}
    values |= {"a.flags": [True, False], "a.flag": True, "a.text": "four", "a.nested": [[1, 2], [3]]}
    model = GgufModel()
    model.general = values
    metadata = open_gguf(model.write(tmp_path / "model.gguf"))[2]
    assert {key: metadata[key] for key in values} == values


def test_version_2(tmp_path: Path) -> None:
    path = GgufModel().write(tmp_path / "model.gguf")
    path.write_bytes(b"GGUF" + struct.pack("<I", 2) + path.read_bytes()[8:])
    check_weights(*open_gguf(path)[:2])


def test_identity_follows_the_file(tmp_path: Path) -> None:
    path = GgufModel().write(tmp_path / "model.gguf")
    first = open_gguf(path)[1].identity
    assert open_gguf(path)[1].identity == first
    path.write_bytes(path.read_bytes() + b"\0")
    assert open_gguf(path)[1].identity != first


def broken(tmp_path: Path, model: GgufModel) -> Any:
    """The error of opening a model and checking its weights."""
    path = model.write(tmp_path / "broken.gguf")
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        check_weights(*open_gguf(path)[:2])
    assert caught.value.hint
    return caught.value


def test_yarn_as_in_transformers(tmp_path: Path) -> None:
    model = GgufModel()
    keys = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64, "rope.scaling.yarn_beta_fast": 16.0}
    model.metadata |= {"rope.scaling.type": "yarn"} | keys
    rope = open_gguf(model.write(tmp_path / "yarn.gguf"))[0].rope
    scaling = Settings({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}, "config.json")
    settings = Settings({"rope_scaling": scaling.values, "rope_theta": rope.theta}, "config.json")
    assert rope == read_rope(settings, 64, 64)
    assert rope.attention_factor > 1.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention.head_count": None}, "llama.attention.head_count"),
        ({"attention.head_count": [4, 4]}, "llama.attention.head_count"),
        ({"block_count": 3}, "blk.2.attn_norm.weight"),
        ({"block_count": 5000}, "llama.block_count"),
        ({"embedding_length": 128, "attention.key_length": 64}, "'embed' has shape [67, 256]"),
        ({"context_length": "long"}, "llama.context_length"),
        ({"rope.dimension_count": 32}, "rope.dimension_count"),
        ({"attention.value_length": 32}, "attention.value_length"),
        ({"rope.scaling.type": "longrope"}, "longrope"),
        ({"rope.scaling.factor": -4.0}, "rope.scaling.factor"),
        ({"rope.scale_linear": "4"}, "rope.scale_linear"),
        ({"rope.freq_base": math.inf}, "rope.freq_base"),
        ({"attention.layer_norm_rms_epsilon": 1e-45}, "layer_norm_rms_epsilon"),
        ({"expert_count": 8}, "expert_used_count"),
        ({"attention.head_count_kv": 3}, "key/value heads"),
        ({"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    model = GgufModel()
    model.metadata |= changes
    assert named in str(broken(tmp_path, model))


def test_architectures(tmp_path: Path) -> None:
    error = broken(tmp_path, GgufModel("mamba"))
    assert isinstance(error, UnsupportedModelError)
    assert "mamba" in str(error)
    assert "qwen3" in str(error)
    # A Qwen always has its biases and norms, whatever else is in the file.
    qwen2, qwen3 = GgufModel("qwen2"), GgufModel("qwen3")
    for layer in range(2):
        for part in "qkv":
            del qwen2.tensors[f"blk.{layer}.attn_{part}.bias"]
        del qwen3.tensors[f"blk.{layer}.attn_k_norm.weight"]
    assert "blk.0.attn_q.bias" in str(broken(tmp_path, qwen2))
    assert "blk.0.attn_k_norm.weight" in str(broken(tmp_path, qwen3))


def test_split_files_are_refused(tmp_path: Path) -> None:
    model = GgufModel()
    model.general = {"split.count": 3}
    assert "split" in str(broken(tmp_path, model))


def test_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    model = GgufModel()
    model.tensors["blk.1.ffn_up.weight"] = (np.zeros((512, 256 // 256 * 292), np.uint8), Kind.Q8_K)
    error = broken(tmp_path, model)
    assert isinstance(error, UnsupportedModelError)
    assert "Q8_K" in str(error)
    assert "blk.1.ffn_up.weight" in str(error)


def test_missing_embedding_and_wrong_rope_factors(tmp_path: Path) -> None:
    model = GgufModel()
    model.tensors["rope_freqs.weight"] = (np.ones(7, np.float32), Kind.F32)
    assert "rope_freqs" in str(broken(tmp_path, model))
    del model.tensors["token_embd.weight"]
    assert "token_embd" in str(broken(tmp_path, model))


@pytest.mark.parametrize("keep", [0, 3, 4, 10, 24, 100, 900, 3000, -1])
def test_truncated(tmp_path: Path, keep: int) -> None:
    path = GgufModel().write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFileError, match=r"model\.gguf"):
        open_gguf(path)


TEXT = struct.pack("<Q", 1) + b"k"
ONE_TENSOR = struct.pack("<Q", 1) + b"t"


@pytest.mark.parametrize(
    ("tensors", "keys", "rest", "why"),
    [
        (2**64 - 1, 0, b"", "claims"),
        (0, 2**60, b"", "claims"),
        (0, 1, struct.pack("<Q", 2**64 - 1), "claims"),
        (0, 1, struct.pack("<Q", 2) + b"\xff\xff", "UTF-8"),
        (0, 1, TEXT + struct.pack("<I", 99), "unknown type 99"),
        (0, 1, TEXT + struct.pack("<IIQ", 9, 4, 2**62), "claims"),
        (0, 1, TEXT + struct.pack("<IIQ", 9, 8, 2**40), "claims"),
        (0, 1, TEXT + struct.pack("<IIQQ", 9, 8, 1, 2**63), "does not end"),
        (0, 1, TEXT + struct.pack("<IIQIQIQ", 9, 9, 1, 9, 1, 9, 1), "unknown type 9"),
        (0, 2, (TEXT + struct.pack("<IB", 0, 1)) * 2, "twice"),
        (2, 0, (ONE_TENSOR + struct.pack("<IQIQ", 1, 4, 0, 0)) * 2, "twice"),
        (1, 0, ONE_TENSOR + struct.pack("<IQIQ", 1, 4, 0, 8), "not aligned"),
        (1, 0, ONE_TENSOR + struct.pack("<IQIQ", 1, 0, 0, 0), "makes no sense"),
        (1, 0, ONE_TENSOR + struct.pack("<IIQ", 0, 0, 0), "makes no sense"),
        (1, 0, ONE_TENSOR + struct.pack("<IQIQ", 1, 33, 2, 0), "makes no sense"),
        (1, 0, ONE_TENSOR + struct.pack("<IQQQQIQ", 4, *[2**40] * 4, 0, 0), "beyond the end"),
        (1, 0, ONE_TENSOR + struct.pack("<I", 5), "claims"),
        (1, 0, ONE_TENSOR + struct.pack("<IQIQ", 1, 4, 0, 2**63), "beyond the end"),
    ],
)
def test_header_that_makes_no_sense(tmp_path: Path, tensors: int, keys: int, rest: bytes, why: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest + bytes(128))
    with pytest.raises(ModelFileError, match=why):
        read_gguf(DataFile(path))


@pytest.mark.parametrize("alignment", [0, 3, 1 << 20])
def test_wrong_alignment(tmp_path: Path, alignment: int) -> None:
    key = b"general.alignment"
    path = tmp_path / "model.gguf"
    header = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<II", 4, alignment)
    path.write_bytes(header + bytes(128))
    with pytest.raises(ModelFileError, match="power of two"):
        read_gguf(DataFile(path))


def test_unknown_tensor_type_and_version(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + ONE_TENSOR + struct.pack("<IQIQ", 1, 4, 777, 0) + bytes(64)
    )
    with pytest.raises(UnsupportedModelError, match="777"):
        read_gguf(DataFile(path))
    for version in (1, 4, 3 << 24):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0) + bytes(64))
        with pytest.raises(UnsupportedModelError, match="version"):
            read_gguf(DataFile(path))


def test_no_gguf_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        open_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        open_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        open_gguf(tmp_path / "pipe.gguf")
    (tmp_path / "text.gguf").write_text("This is a text about llamas.")
    with pytest.raises(ModelFileError, match="no GGUF file"):
        open_gguf(tmp_path / "text.gguf")
