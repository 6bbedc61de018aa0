"""Writes a model folder of a shape with made-up weights, as large as the real one, for benchmarks that load files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monolane.bench.measure.shapes import MadeUpWeights
from monolane.cache import make_folder, require_disk_space
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.families.names import huggingface_name
from monolane.model.weights import expected_shapes, to_bf16

ROWS_AT_A_TIME = 1024  # of a matrix, generated and written


def write(config: ModelConfig, folder: Path) -> int:
    """Write config.json, model.safetensors and tokenizer.json; returns the bytes of the weights."""
    if any(config.windows) or config.lanes or config.experts:
        raise UsageError(
            "A model folder cannot be written for a shape with attention windows, lanes or experts.",
            "Choose a shape without them.",
        )
    entries: dict[str, dict[str, Any]] = {}
    size = 0
    for name, shape in expected_shapes(config):
        end = size + 2 * _elements(shape)
        entries[huggingface_name(name)] = {"dtype": "BF16", "shape": shape, "data_offsets": (size, end)}
        size = end
    require_disk_space(folder, size, "a model of this shape")
    make_folder(folder)
    (folder / "config.json").write_text(json.dumps(_settings(config)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config.vocab)))
    header = json.dumps(entries).encode()
    weights = MadeUpWeights(config)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, shape in expected_shapes(config):
            if len(shape) == 1:
                file.write(to_bf16(weights.vector(name)).tobytes())
                continue
            for start in range(0, shape[0], ROWS_AT_A_TIME):
                file.write(weights.rows(name, start, min(start + ROWS_AT_A_TIME, shape[0])).data)
    return size


def _elements(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) == 2 else 1)


def _settings(config: ModelConfig) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "model_type": config.family,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
        "sliding_window": None,  # without this key transformers gives a Mistral model a window of 4,096 tokens
    }


def tokenizer(vocab: int) -> dict[str, Any]:
    """The content of a tokenizer.json with ``vocab`` entries: the 256 bytes, then made-up words; no merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    entries = [*sorted(ByteLevel.alphabet()), *(f"word{number}" for number in range(vocab))][:vocab]
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": bytes_as_letters,
        "post_processor": None,
        "decoder": bytes_as_letters,
        "model": {"type": "BPE", "vocab": {entry: token for token, entry in enumerate(entries)}, "merges": []},
    }
