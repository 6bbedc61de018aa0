"""Hugging Face folders as transformers writes them, and folders that are broken."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import CLASSES, bf16_bits, change_config, save_huggingface

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.families.names import huggingface_name
from monolane.model.huggingface import open_folder
from monolane.model.load import load_config
from monolane.model.weights import check_weights, expected_shapes


def assert_same_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    config, weights = open_folder(folder)
    check_weights(config, weights)
    for name, shape in expected_shapes(config):
        tensor = tensors[huggingface_name(name)]
        if len(shape) == 1:
            np.testing.assert_array_equal(weights.vector(name), tensor.float().numpy())
            continue
        bits = bf16_bits(tensor)
        np.testing.assert_array_equal(weights.rows(name, 0, shape[0]), bits)
        np.testing.assert_array_equal(weights.rows(name, 3, shape[0] - 2), bits[3:-2])
        assert weights.rows(name, 5, 5).shape == (0, shape[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("family", CLASSES)
def test_values_as_in_transformers(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    tensors = save_huggingface(tmp_path, family, dtype, head_dim=10)
    assert_same_tensors(tmp_path, tensors)
    assert open_folder(tmp_path)[1].converted == (dtype != torch.bfloat16)


def test_all_biases(tmp_path: Path) -> None:
    tensors = save_huggingface(tmp_path, attention_bias=True, mlp_bias=True)
    config, weights = open_folder(tmp_path)
    assert config.mlp_bias
    assert weights.shape("layers.1.down.bias") == (48,)
    assert_same_tensors(tmp_path, tensors)


def test_shards(tmp_path: Path) -> None:
    tensors = save_huggingface(tmp_path, "qwen2", shard="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_same_tensors(tmp_path, tensors)


def test_large_matrix_is_read_in_blocks_without_seams(tmp_path: Path) -> None:
    tensors = save_huggingface(tmp_path, dtype=torch.float32, vocab_size=7001)
    _, weights = open_folder(tmp_path)
    expected = bf16_bits(tensors["lm_head.weight"])
    np.testing.assert_array_equal(weights.rows("head", 0, 7001), expected)
    np.testing.assert_array_equal(weights.rows("head", 1234, 6001), expected[1234:6001])


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a saved model, or remove those set to None."""
    index = folder / "model.safetensors.index.json"
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        new = {name: changes.get(name, tensor) for name, tensor in tensors.items()}
        if not index.exists():
            new |= changes
        save_file({name: tensor for name, tensor in new.items() if tensor is not None}, path, {"format": "pt"})
    if index.exists():
        content = json.loads(index.read_text())
        places = content["weight_map"]
        content["weight_map"] = {name: at for name, at in places.items() if changes.get(name, ...) is not None}
        index.write_text(json.dumps(content))


class TestTied:
    def test_config_says_tied(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path, tie_word_embeddings=True)
        config, weights = open_folder(tmp_path)
        check_weights(config, weights)
        assert config.tied

    @pytest.mark.parametrize("shard", ["1GB", "20KB"])
    @pytest.mark.parametrize("family", CLASSES)
    @pytest.mark.parametrize("head", ["different", "equal", "alone", "absent"])
    def test_head_and_embedding_as_transformers_has_them(
        self, tmp_path: Path, family: str, shard: str, head: str
    ) -> None:
        saved = save_huggingface(tmp_path, family, shard=shard, head_dim=10)
        change_config(tmp_path, tie_word_embeddings=True)
        embedding = saved["model.embed_tokens.weight"]
        changes: dict[str, dict[str, torch.Tensor | None]] = {
            "different": {},
            "equal": {"lm_head.weight": embedding.clone()},
            "alone": {"model.embed_tokens.weight": None},
            "absent": {"lm_head.weight": None},
        }
        rewrite(tmp_path, changes[head])
        judge = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
        config, weights = open_folder(tmp_path)
        check_weights(config, weights)
        assert config.tied == (head != "different")
        assert load_config(tmp_path) == config
        ours = {name: weights.rows(name, 0, 101) for name in ("embed", "embed" if config.tied else "head")}
        for name, theirs in (("embed", "model.embed_tokens.weight"), (list(ours)[-1], "lm_head.weight")):
            np.testing.assert_array_equal(ours[name], bf16_bits(judge[theirs]))

    def test_heads_that_differ_in_their_last_number_or_shape(self, tmp_path: Path) -> None:
        saved = save_huggingface(tmp_path, vocab_size=30_001)  # compared in more than one piece
        change_config(tmp_path, tie_word_embeddings=True)
        head = saved["model.embed_tokens.weight"].clone()
        rewrite(tmp_path, {"lm_head.weight": head})
        assert open_folder(tmp_path)[0].tied
        head[-1, -1] += 1
        rewrite(tmp_path, {"lm_head.weight": head})
        assert not open_folder(tmp_path)[0].tied
        rewrite(tmp_path, {"lm_head.weight": head[:-1].clone()})
        with pytest.raises(ModelFileError, match=r"'head' has shape \[30000, 48\]"):
            check_weights(*open_folder(tmp_path))

    def test_config_says_nothing(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path)
        change_config(tmp_path, tie_word_embeddings=...)
        assert not open_folder(tmp_path)[0].tied
        rewrite(tmp_path, {"lm_head.weight": None})
        assert open_folder(tmp_path)[0].tied

    def test_untied_without_a_head(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path)
        rewrite(tmp_path, {"lm_head.weight": None})
        config, weights = open_folder(tmp_path)
        with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
            check_weights(config, weights)


def test_extra_buffers_are_ignored(tmp_path: Path) -> None:
    tensors = save_huggingface(tmp_path)
    rewrite(tmp_path, {"model.rotary_emb.inv_freq": torch.arange(4)})
    assert_same_tensors(tmp_path, tensors)


def test_identity_follows_the_files(tmp_path: Path) -> None:
    save_huggingface(tmp_path, shard="20KB")
    first = open_folder(tmp_path)[1].identity
    assert open_folder(tmp_path)[1].identity == first
    rewrite(tmp_path, {"model.norm.weight": torch.zeros(48, dtype=torch.bfloat16)})
    assert open_folder(tmp_path)[1].identity != first


def test_identity_follows_the_content_where_a_file_system_has_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two read-only images mounted at the same place: the same size, times and number, another content."""
    save_huggingface(tmp_path, vocab_size=5000)
    real = os.fstat
    monkeypatch.setattr(
        "os.fstat",
        lambda descriptor: os.stat_result((*real(descriptor)[:1], 7, *real(descriptor)[2:7], 1, 1, 1)),
    )
    first = open_folder(tmp_path)[1].identity
    assert open_folder(tmp_path)[1].identity == first
    rewrite(tmp_path, {"model.layers.1.mlp.down_proj.weight": torch.ones(48, 80, dtype=torch.bfloat16)})
    assert open_folder(tmp_path)[1].identity != first


def test_missing_tensor_and_wrong_shape_are_named(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(tmp_path, {name: torch.zeros(79, 48, dtype=torch.bfloat16)})
    with pytest.raises(ModelFileError, match=r"layers\.1\.up.*\[79, 48\].*\[80, 48\]"):
        check_weights(*open_folder(tmp_path))
    rewrite(tmp_path, {name: None})
    with pytest.raises(ModelFileError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        check_weights(*open_folder(tmp_path))


def test_tensor_in_a_type_that_is_not_read(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(tmp_path, {name: torch.zeros(80, 48, dtype=torch.float8_e4m3fn)})
    with pytest.raises(UnsupportedModelError, match=r"up_proj.*F8_E4M3"):
        check_weights(*open_folder(tmp_path))


def test_rows_outside_the_matrix(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    _, weights = open_folder(tmp_path)
    for name, start, stop in (("embed", 0, 102), ("embed", -1, 2), ("embed", 3, 2), ("final_norm", 0, 1)):
        with pytest.raises(IndexError):
            weights.rows(name, start, stop)
    with pytest.raises(IndexError):
        weights.vector("embed")


class TestBrokenFolders:
    def test_no_weights(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
            open_folder(tmp_path)
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(UnsupportedModelError, match="pickle"):
            open_folder(tmp_path)

    @pytest.mark.parametrize("keep", [0, 4, 8, 200, -1])
    def test_truncated(self, tmp_path: Path, keep: int) -> None:
        save_huggingface(tmp_path)
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ModelFileError, match=r"model\.safetensors"):
            open_folder(tmp_path)

    def test_missing_shard(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path, shard="20KB")
        shard = min(tmp_path.glob("model-*.safetensors"))
        shard.unlink()
        with pytest.raises(ModelFileError, match=shard.name):
            open_folder(tmp_path)

    @pytest.mark.parametrize(
        "shard", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", "x.bin", 3]
    )
    def test_index_must_name_files_of_the_folder(self, tmp_path: Path, shard: Any) -> None:
        folder = tmp_path / "model"
        save_huggingface(folder)
        (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
        index = {"weight_map": {"lm_head.weight": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelFileError, match=r"index\.json"):
            open_folder(folder)

    @pytest.mark.parametrize("name", ["x" * 5000, "x\0", "x" + "\ud800"])
    def test_index_names_an_impossible_file(self, tmp_path: Path, name: str) -> None:
        save_huggingface(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        index = {"weight_map": {"lm_head.weight": f"{name}.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelFileError, match="cannot be opened"):
            open_folder(tmp_path)

    def test_index_and_shard_disagree(self, tmp_path: Path) -> None:
        save_huggingface(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "part.safetensors")
        index = {"weight_map": {"unheard.of": "part.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelFileError, match=r"unheard\.of"):
            open_folder(tmp_path)


def entry(dtype: Any = "BF16", shape: Any = (2, 2), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"a": entry(offsets=(0, 4096))}, "does not fit"),
        ({"a": entry(shape=(2, 3))}, "does not fit"),
        ({"a": entry(offsets=(8, 0))}, "does not fit"),
        ({"a": entry(shape=(64, 64), offsets=(0, 8192))}, "beyond the end"),
        ({"a": entry(shape=(-2, -2))}, "make no sense"),
        ({"a": entry(shape=(2.0, 2))}, "make no sense"),
        ({"a": entry(shape=[1] * 100)}, "make no sense"),
        ({"a": entry(offsets=(0, 8, 16))}, "make no sense"),
        ({"a": entry(offsets=None)}, "make no sense"),
        ({"a": entry(dtype="Q9")}, "Q9"),
        ({"a": entry(dtype=["BF16"])}, "BF16"),
        ({"a": 5}, "no object"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, "overlap"),
    ],
)
def test_safetensors_header_that_makes_no_sense(tmp_path: Path, header: dict[str, Any], why: str) -> None:
    save_huggingface(tmp_path)
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with pytest.raises(ModelFileError, match=why):
        open_folder(tmp_path)


@pytest.mark.parametrize("length", [1 << 63, 2**64 - 1, 200_000_000, 100])
def test_safetensors_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    save_huggingface(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelFileError, match="header"):
        open_folder(tmp_path)
