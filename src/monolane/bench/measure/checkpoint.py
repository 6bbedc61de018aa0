"""Writes a model folder of a shape with its made-up weights, as published, for benchmarks that load files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from monolane.bench.measure.folder_config import settings
from monolane.bench.measure.folder_tensors import Tensor, tensors
from monolane.cache import disk_errors, require_disk_space
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights

# Several files, because threads that write to the same one wait for each other.
SHARD_BYTES = 1 << 30
# Made and written at a time: little enough for a core's L2 cache, and for the allocator to reuse it.
PIECE_BYTES = 1 << 20
ANOTHER_PLACE = "set TMPDIR to a folder with room, such as /dev/shm, which is in memory"


def write(config: ModelConfig, weights: Weights, folder: Path) -> int:
    """Write config.json, tokenizer.json, and safetensors in shards; returns the bytes of the weights. Low-bit matrices
    that a folder of the family has not are widened to bf16."""
    if config.lanes:
        raise UsageError("A model folder cannot be written for a shape with lanes.", "Choose a shape without them.")
    described = settings(config)
    shards = _shards(tensors(config, weights))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    size = sum(tensor.size for shard in shards for tensor in shard)
    require_disk_space(folder, size, "a model of this shape", ANOTHER_PLACE)
    places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = {"metadata": {"total_size": size}, "weight_map": places}
    with disk_errors(folder, ANOTHER_PLACE):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(described))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config.vocab)))
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with ThreadPoolExecutor(os.cpu_count() or 1, "write model") as pool:
            for _ in pool.map(_write_shard, (folder / name for name in names), shards):
                pass
    return size


def _shards(found: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors of each file: a new one begins where one is full."""
    shards: list[list[Tensor]] = []
    room = 0
    for tensor in found:
        if room <= 0:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(tensor)
        room -= tensor.size
    return shards


def _write_shard(path: Path, shard: list[Tensor]) -> None:
    shard = sorted(shard, key=lambda tensor: tensor.dtype == "U8")  # numbers of two bytes first, to be aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without which transformers reads no safetensors
    end = 0
    for tensor in shard:
        start, end = end, end + tensor.size
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            step = max(1, PIECE_BYTES * tensor.rows // tensor.size)
            for start in range(0, tensor.rows, step):
                file.write(tensor.make(start, min(start + step, tensor.rows)).data)


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
