"""Weights by their canonical names, independent of the file format.

All families use the same names, so no other package knows the names in checkpoints:

    embed  final_norm  head (absent when tied)
    layers.N.{attn_norm, q, k, v, o, ffn_norm, gate, up, down}
    layers.N.{q, k, v, o, gate, up, down}.bias   where the family has them
    layers.N.{q_norm, k_norm}                    where the family has them
    layers.N.{q, k, v, o, gate, up, down}.order  where the matrix is ordered (model/format.py)
    layers.N.sinks                               where the family has them

A layer with experts has, instead of gate, up and down:

    layers.N.router, layers.N.experts.{gate, up, down}, each also with .bias
    layers.N.shared_router, layers.N.shared.{gate, up, down}   where there is a shared expert

A matrix or bias of experts has the rows of all of them, one expert after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError
from monolane.model.config import ModelConfig
from monolane.model.format import BF16, Format, QuantRows

Bf16Bits = NDArray[np.uint16]


class Weights(Protocol):
    """A read-only store of named tensors. Matrices are [out, in] and are read some rows at a time, to bound memory."""

    @property
    def identity(self) -> str:
        """A cache key that changes whenever the content of the files changes. It reads a few bytes of them."""

    @property
    def converted(self) -> bool:
        """True if matrices have to be converted to bf16 or to a low-bit format, so that caching the result is
        worthwhile."""

    @property
    def widened(self) -> tuple[str, ...]:
        """The names of the stored low-bit types that no format holds, and that are widened to bf16."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; ModelFileError if there is no tensor of this name."""

    def format(self, name: str) -> Format:
        """The format that holds a matrix as it is stored: bf16 where it is no low-bit matrix."""

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        """Rows [start, stop) of a matrix as bf16 bits, C-contiguous. Safe to call from several threads."""

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        """Rows [start, stop) of a matrix in its format, which is a low-bit one. Safe to call from several threads."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """A one-dimensional tensor in fp32."""


class Unquantised:
    """The part of ``Weights`` that is the same for all weights without low-bit matrices."""

    widened: tuple[str, ...] = ()

    def format(self, name: str) -> Format:
        return BF16

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        raise AssertionError(f"{name!r} is no low-bit matrix")


def matrix_values(weights: Weights, name: str, start: int, stop: int) -> NDArray[np.float32]:
    """Rows [start, stop) of a matrix in fp32, exactly as its format holds them; columns in the order of the input."""
    if weights.format(name).is_low_bit:
        values = weights.quants(name, start, stop).values(weights.shape(name)[1])
        if weights.format(name).ordered:
            values[:, weights.vector(f"{name}.order").astype(np.int64)] = values.copy()
        return values
    return from_bf16(weights.rows(name, start, stop))


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that a model of this config must have, with its shape."""
    lanes = config.lanes
    norm = config.hidden * (1 if lanes is None or lanes.shares_norms else lanes.count)  # of all lanes
    yield "embed", (config.vocab, config.hidden)
    yield "final_norm", (norm,)
    if not config.tied:
        yield "head", (config.vocab, config.hidden * (lanes.count if lanes and lanes.head == "lane" else 1))
    attention = {
        "q": (config.q_size, config.hidden),
        "k": (config.kv_size, config.hidden),
        "v": (config.kv_size, config.hidden),
        "o": (config.hidden, config.q_size),
    }
    biased = {"q", "k", "v"} if config.qkv_bias else set()
    biased |= {"o"} if config.o_bias else set()
    biased |= {"gate", "up", "down"} if config.mlp_bias else set()
    biased |= {"router", *_feed_forward("experts.", 0, 0)} if config.experts and config.experts.biased else set()
    for layer in range(config.layers):
        sizes = attention | _feed_forward_sizes(config, layer)
        prefix = f"layers.{layer}."
        yield prefix + "attn_norm", (norm,)
        yield prefix + "ffn_norm", (norm,)
        if config.qk_norm:
            yield prefix + "q_norm", (config.head_dim,)
            yield prefix + "k_norm", (config.head_dim,)
        if config.sinks:
            yield prefix + "sinks", (config.heads,)
        for name, shape in sizes.items():
            yield prefix + name, shape
            if name in biased:
                yield f"{prefix}{name}.bias", shape[:1]


def _feed_forward_sizes(config: ModelConfig, layer: int) -> dict[str, tuple[int, int]]:
    experts = config.experts
    if experts is None or not experts.layers[layer]:
        return _feed_forward("", config.ffn, config.hidden)
    sizes = {"router": (experts.count, config.hidden)}
    sizes |= _feed_forward("experts.", experts.ffn, config.hidden, experts.count)
    if experts.shared_ffn:
        sizes["shared_router"] = (1, config.hidden)
        sizes |= _feed_forward("shared.", experts.shared_ffn, config.hidden)
    return sizes


def _feed_forward(prefix: str, ffn: int, hidden: int, count: int = 1) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}gate": (count * ffn, hidden),
        f"{prefix}up": (count * ffn, hidden),
        f"{prefix}down": (count * hidden, ffn),
    }


def check_weights(config: ModelConfig, weights: Weights) -> None:
    """Refuse a model if a tensor is missing, or its shape is not the one that the config implies."""
    for name, shape in expected_shapes(config):
        actual = weights.shape(name)
        if actual != shape:
            raise ModelFileError(
                f"Tensor {name!r} has shape {list(actual)}, but the config asks for {list(shape)}.",
                "The config and the weights do not belong together; fetch both from the same source.",
            )


def to_bf16(values: NDArray[np.float32]) -> Bf16Bits:
    """Round fp32 to bf16, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    result = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        result[nan] = 0x7FC0
    return result


def from_bf16(bits: Bf16Bits) -> NDArray[np.float32]:
    """Widen bf16 bits to fp32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
