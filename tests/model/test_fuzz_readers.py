"""Fuzzing of the file readers: any bytes give a clear error or a valid model, within little memory."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import GgufModel, gguf_with_tokenizer, save_folder, save_huggingface

from monolane.errors import MonolaneError
from monolane.model.families.keys import HARMLESS, NEUTRAL
from monolane.model.gguf_weights import open_gguf
from monolane.model.huggingface import open_folder
from monolane.model.load import load_model
from monolane.model.weights import check_weights, expected_shapes
from monolane.progress import Silent
from thorough import THOROUGH

# Bytes. The files below are smaller than a megabyte; what is read from them is in memory a few times at most.
MEMORY_LIMIT = 16 << 20

bounded = settings(
    max_examples=200 if THOROUGH else 50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Values that counts, lengths and offsets go wrong with, besides random ones.
nasty = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A way to damage a file: mostly in the first few kilobytes, where headers are."""
    spots = draw(st.lists(st.tuples(st.floats(0, 1), st.booleans(), nasty, st.sampled_from([1, 4, 8])), max_size=6))
    keep = draw(st.none() | st.floats(0, 1))
    flips = draw(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 7)), max_size=4))

    def damage(data: bytes) -> bytes:
        result = bytearray(data)
        for fraction, early, value, size in spots:
            at = int(fraction * (min(len(data), 4096) if early else len(data)))
            result[at : at + size] = struct.pack("<Q", value)[:size]
        for at, bit in flips:
            result[at % len(result)] ^= 1 << bit
        return bytes(result if keep is None else result[: int(keep * len(result))])

    return damage


def read_everything(path: Path) -> None:
    """Open a model and read all of it, within the limit on memory; only our own errors may come out."""
    tracemalloc.start()
    with contextlib.suppress(MonolaneError):
        config, weights = open_gguf(path)[:2] if path.is_file() else open_folder(path)
        check_weights(config, weights)
        for name, shape in expected_shapes(config):
            if len(shape) == 1:
                assert weights.vector(name).dtype == np.float32
            else:
                assert weights.rows(name, 0, shape[0]).shape == shape
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY_LIMIT


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = GgufModel("qwen2")
    model.layers = 1
    model.hidden = model.ffn = 64
    model.head_dim, model.kv_heads = 16, 2
    model.tensors.clear()
    model._make_tensors()
    model.metadata |= {"embedding_length": 64, "feed_forward_length": 64, "block_count": 1}
    model.general = {"tokenizer.ggml.tokens": ["a", "b", "c"], "tokenizer.ggml.scores": [0.0, 1.0], "flags": [True]}
    return model.write(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    place = tmp_path_factory.mktemp("folder")
    save_huggingface(place, "qwen3", head_dim=16, shard="20KB")
    return place, {path.name: path.read_bytes() for path in place.iterdir()}


def test_undamaged_files_are_read(tmp_path: Path, gguf_bytes: bytes, folder: tuple[Path, dict[str, bytes]]) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes)
    check_weights(*open_gguf(tmp_path / "model.gguf")[:2])
    check_weights(*open_folder(folder[0]))


@bounded
@given(damage=damages())
def test_damaged_gguf(tmp_path: Path, gguf_bytes: bytes, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(gguf_bytes))
    read_everything(path)


@bounded
@given(data=st.binary(max_size=2000), counts=st.tuples(nasty, nasty))
def test_random_bytes_after_a_gguf_start(tmp_path: Path, data: bytes, counts: tuple[int, int]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, counts[0] % 8, counts[1] % 8) + data)
    read_everything(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + data)
    read_everything(path)


@bounded
@given(damage=damages(), pick=st.integers(0, 100))
def test_damaged_folder(folder: tuple[Path, dict[str, bytes]], damage: Callable[[bytes], bytes], pick: int) -> None:
    place, files = folder
    name = sorted(files)[pick % len(files)]
    (place / name).write_bytes(damage(files[name]))
    try:
        read_everything(place)
    finally:
        (place / name).write_bytes(files[name])


@bounded
@given(header=st.binary(max_size=500), length=st.none() | nasty)
def test_random_bytes_as_safetensors(folder: tuple[Path, dict[str, bytes]], header: bytes, length: int | None) -> None:
    place, files = folder
    name = min(name for name in files if name.endswith(".safetensors"))
    (place / name).write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    try:
        read_everything(place)
    finally:
        (place / name).write_bytes(files[name])


# Values that a key of a JSON file or of a GGUF file's metadata can have, and that nobody expects there.
numbers = st.sampled_from([0, 1, -1, 2, 64, 10**400, -(10**400), 1e-320, 1e308, float("inf"), float("nan"), 0.5])
texts = st.sampled_from(["", "linear", "llama3", "full_attention", "w2", "\ud800", "\0", "x" * 300]) | st.text(
    max_size=4
)
scalars = st.none() | st.booleans() | numbers | texts | st.integers() | st.floats()
rope_keys = st.sampled_from(["rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor"])
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(rope_keys | st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)

CONFIG_KEYS = sorted(
    {
        "model_type", "architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act",
        "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings",
        "tie_word_embeddings", "attention_bias", "mlp_bias", "quantization_config", "sliding_window", "layer_types",
        "use_sliding_window", "max_window_layers",
    }
    | NEUTRAL.keys()
    | HARMLESS.keys()
)  # fmt: skip
TOKENIZER_KEYS = ["bos_token", "eos_token", "add_bos_token", "add_eos_token", "chat_template", "model_max_length"]


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("whole"), words=60)


@bounded
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    config=st.dictionaries(st.sampled_from(CONFIG_KEYS), json_values, max_size=3),
    generation=st.none() | st.dictionaries(st.sampled_from(["eos_token_id", "temperature"]), json_values),
    tokenizer=st.dictionaries(st.sampled_from(TOKENIZER_KEYS), st.booleans() | texts | json_values, max_size=3),
)
def test_any_value_of_any_key(
    whole_folder: Path, family: str, config: dict[str, Any], generation: Any, tokenizer: dict[str, Any]
) -> None:
    changed = {
        "config.json": {"model_type": family, "architectures": None, "eos_token_id": None, **config},
        "tokenizer_config.json": tokenizer,
    }
    changed["generation_config.json"] = generation or {}
    original = {name: path.read_bytes() for name in changed if (path := whole_folder / name).exists()}
    try:
        for name, changes in changed.items():
            values = json.loads(original.get(name, b"{}")) | changes
            (whole_folder / name).write_text(json.dumps(values))
        with contextlib.suppress(MonolaneError):
            model = load_model(whole_folder, Silent())
            assert all(np.isfinite(model.config.rope.inverse_frequencies(model.config.head_dim)))
            assert len(model.weights.identity) == 64
    finally:
        for name in changed:
            (whole_folder / name).unlink(missing_ok=True)
        for name, data in original.items():
            (whole_folder / name).write_bytes(data)


GGUF_KEYS = [
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "context_length", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "expert_count",
    "attention.key_length", "attention.value_length", "attention.sliding_window", "rope.scaling.type",
    "rope.scaling.factor", "rope.scale_linear", "logit_scale", "attention.causal", "attention.scale", "made.up",
]  # fmt: skip
GGUF_TOKENIZER_KEYS = [
    f"tokenizer.ggml.{name}"
    for name in ("model", "pre", "tokens", "token_type", "merges", "scores", "eos_token_id", "eot_token_id",
                 "bos_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix")
] + ["tokenizer.chat_template", "general.alignment", "split.count"]  # fmt: skip
gguf_scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(width=32)
    | st.sampled_from([0, 1, 51, 0.0, "", "linear"])
)
gguf_values = (
    gguf_scalars
    | st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=70)
    | st.lists(st.floats(width=32), min_size=1, max_size=70)
    | st.lists(st.sampled_from(["a", "a b", "", "b"]), min_size=1, max_size=5)
)


@bounded
@given(
    metadata=st.dictionaries(st.sampled_from(GGUF_KEYS), gguf_values, max_size=2),
    general=st.dictionaries(st.sampled_from(GGUF_TOKENIZER_KEYS), gguf_values, max_size=2),
)
def test_any_value_of_any_metadata(tmp_path: Path, metadata: dict[str, Any], general: dict[str, Any]) -> None:
    model = gguf_with_tokenizer(["<|im_end|>"])
    model.metadata |= metadata
    model.general |= general
    path = model.write(tmp_path / "model.gguf")
    with contextlib.suppress(MonolaneError):
        found = load_model(path, Silent())
        assert all(np.isfinite(found.config.rope.inverse_frequencies(found.config.head_dim)))
