"""Writes the weights of a shape as a GGUF file, bit by bit those that Monolane runs, for a peer that reads such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure import checkpoint
from monolane.cache import require_disk_space
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.families.names import gguf_name
from monolane.model.format import BLOCK_GROUPS, Bytes, QuantRows
from monolane.model.weights import Weights, expected_shapes

Pack = Callable[[QuantRows], Bytes]  # to [row][bytes], as the type has them


def write(config: ModelConfig, weights: Weights, path: Path) -> int:
    """Write the file; returns the bytes of its tensors. Raises where llama.cpp has no such model."""
    name = "llama" if config.family == "mistral" else config.family
    family = next(family for family in FAMILIES if family.name == name)
    if family.gguf_architecture is None or any(config.windows) or config.lanes or config.sinks:
        raise UsageError(
            f"No GGUF file is written of a {config.family} with attention windows, sinks or lanes.",
            "Choose a shape without them.",
        )
    kinds = {name: _kind(weights, name) for name, shape in expected_shapes(config) if len(shape) == 2}
    writer = gguf.GGUFWriter(path, family.gguf_architecture)
    _add_settings(writer, config)
    size = 0
    for name, shape in expected_shapes(config):
        if name in kinds:
            if config.experts and ".experts." in name:
                shape = (config.experts.count, shape[0] // config.experts.count, shape[1])
            kind = gguf.GGMLQuantizationType[kinds[name]]
            in_bytes = gguf.quant_shape_to_byte_shape(shape, kind)
            writer.add_tensor_info(gguf_name(name), in_bytes, np.dtype(np.uint8), int(np.prod(in_bytes)), kind)
            size += int(np.prod(in_bytes))
        else:
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), 4 * shape[0])
            size += 4 * shape[0]
    require_disk_space(path.parent, size, "a GGUF file of this shape")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in expected_shapes(config):
        data: NDArray[np.generic]
        data = _packed(weights, name, kinds[name], shape[0]) if name in kinds else weights.vector(name)
        if family.gguf_interleaved and name.removesuffix(".bias").endswith((".q", ".k")):
            data = _interleaved(data, config.head_dim)
        writer.write_tensor_data(np.ascontiguousarray(data))
    writer.close()
    return size


def _add_settings(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    if config.experts:
        writer.add_expert_count(config.experts.count)
        writer.add_expert_used_count(config.experts.chosen)
        writer.add_expert_feed_forward_length(config.experts.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_vocab_size(config.vocab)
    words = checkpoint.tokenizer(config.vocab)["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(words))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_merges(["a b"])  # llama.cpp insists on one; prompts are token ids
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _kind(weights: Weights, name: str) -> str:
    """The GGUF type that holds exactly what the matrix has."""
    format = weights.format(name)
    if not format.is_low_bit:
        return "BF16"
    if format.name not in PACKED:
        raise UsageError(f"GGUF files have no type for {format.name}.", f"Choose one of: {', '.join(PACKED)}.")
    kind, _ = PACKED[format.name]
    block = 256 if kind.endswith("_K") else 32
    if weights.shape(name)[1] % block:
        raise UsageError(
            f"{name} has rows of {weights.shape(name)[1]} weights, which {kind} cannot hold: it has blocks of {block}.",
            "Choose another format or shape.",
        )
    return kind


def _packed(weights: Weights, name: str, kind: str, rows: int) -> Bytes:
    if kind == "BF16":
        return np.ascontiguousarray(weights.rows(name, 0, rows)).view(np.uint8)
    quants = weights.quants(name, 0, rows)
    return PACKED[quants.format.name][1](quants).reshape(rows, -1)


def _interleaved(data: NDArray[np.generic], head: int) -> NDArray[np.generic]:
    """Rows of q and k, or their biases, in the order for RoPE over neighbouring pairs."""
    halves = data.reshape(-1, 2, head // 2, *data.shape[1:])
    return halves.swapaxes(1, 2).reshape(data.shape)


def _joined(*parts: NDArray[np.generic]) -> Bytes:
    """[row][block][bytes] of several arrays [row][block][...], one behind the other."""
    flat = [np.ascontiguousarray(part.reshape(*part.shape[:2], -1)).view(np.uint8) for part in parts]
    return np.concatenate(flat, 2)


def _columns(low: Bytes, bits: int) -> Bytes:
    """[row][super-block][group][32]: one code, or its high bits, in a byte."""
    mask = np.uint8((1 << bits) - 1)
    columns = np.concatenate([low & mask, low >> np.uint8(bits)], 2)
    return columns.reshape(len(low), -1, BLOCK_GROUPS, 32)


def _simple(quants: QuantRows) -> Bytes:
    return _joined(quants.scales, quants.codes)


def _q8_0(quants: QuantRows) -> Bytes:
    return _joined(quants.scales, quants.codes ^ np.uint8(0x80))


def _q4_k(quants: QuantRows) -> Bytes:
    columns = _columns(quants.codes, 4)
    scales, minima = np.moveaxis(quants.scales.astype(np.uint8).reshape(*columns.shape[:3], 2), -1, 0)
    small = (
        scales[..., :4] | scales[..., 4:] >> 4 << 6,
        minima[..., :4] | minima[..., 4:] >> 4 << 6,
        scales[..., 4:] & 15 | (minima[..., 4:] & 15) << 4,
    )
    return _joined(quants.blocks, *small, columns[:, :, 0::2] | columns[:, :, 1::2] << 4)


def _q6_k(quants: QuantRows) -> Bytes:
    columns, high = _columns(quants.codes, 4), _columns(quants.high, 2)
    blocks = columns.shape[:2]
    # [half of the super-block][its groups 0 and 1, then 2 and 3]
    low = columns.reshape(*blocks, 2, 2, 64)
    four = high.reshape(*blocks, 2, 4, 32)
    upper = four[..., 0, :] | four[..., 1, :] << 2 | four[..., 2, :] << 4 | four[..., 3, :] << 6
    scales = quants.scales.reshape(*blocks, 2 * BLOCK_GROUPS)
    return _joined(low[..., 0, :] | low[..., 1, :] << 4, upper, scales, quants.blocks)


PACKED: dict[str, tuple[str, Pack]] = {  # our format: the GGUF type, and how its blocks are made
    "i4g32": ("Q4_0", _simple),
    "u4g32m": ("Q4_1", _simple),
    "nl4g32": ("IQ4_NL", _simple),
    "i8g32": ("Q8_0", _q8_0),
    "u4k32": ("Q4_K", _q4_k),
    "i6k16": ("Q6_K", _q6_k),
}
