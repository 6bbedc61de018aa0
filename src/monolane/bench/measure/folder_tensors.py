"""The tensors of a model folder, as its family is published, from weights by their canonical names.

Matrices are bf16, and experts have a tensor each. Only gpt-oss has all experts of a layer in one tensor, in MXFP4
(families/gpt_oss.py reads them): gate and up row by row in turns, 32 neighbouring columns in 16 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.errors import UsageError
from monolane.model.config import Experts, ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.families.experts import of_expert
from monolane.model.format import EXPONENT, FP4, GROUP, Bytes, QuantRows, format_of
from monolane.model.weights import Weights, expected_shapes, to_bf16

ITEM_BYTES = {"BF16": 2, "U8": 1}  # by the names of types in safetensors files
_JOINED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}  # of gpt-oss
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR_BITS = np.uint64(4)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file. ``make`` returns some of its rows, [start, stop), C-contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    make: Callable[[int, int], NDArray[np.generic]]

    @property
    def size(self) -> int:
        """In bytes."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


def tensors(config: ModelConfig, weights: Weights) -> Iterator[Tensor]:
    """All tensors of the folder."""
    family = next(family for family in FAMILIES if family.name == config.family)
    for name, shape in expected_shapes(config):
        if config.experts is None or ".experts." not in name:
            yield _plain(weights, name, family.file_name(name), shape)
        elif not family.joins_experts:
            for expert in range(config.experts.count):
                each = (shape[0] // config.experts.count, *shape[1:])
                yield _plain(weights, name, family.file_name(of_expert(name, expert)), each, expert * each[0])
    if config.experts is not None and family.joins_experts:
        for layer in range(config.layers):
            for matrix, parts in _JOINED.items():
                names = [f"layers.{layer}.experts.{part}" for part in parts]
                yield from _joined(weights, names, f"model.layers.{layer}.mlp.experts.{matrix}", config.experts)


def _plain(weights: Weights, name: str, file_name: str, shape: tuple[int, ...], first: int = 0) -> Tensor:
    """A matrix in bf16, or a vector. ``first``: where its rows begin in the one that has the canonical name."""

    def make(start: int, stop: int) -> NDArray[np.generic]:
        if len(shape) == 1:
            return to_bf16(weights.vector(name)[first + start : first + stop])
        return weights.rows(name, first + start, first + stop)

    return Tensor(file_name, "BF16", shape, shape[0], make)


def _joined(weights: Weights, names: list[str], file_name: str, experts: Experts) -> Iterator[Tensor]:
    """The three tensors of a matrix of gpt-oss. A row of each has one row of every matrix in ``names``."""
    rows, cols = weights.shape(names[0])
    if any(weights.format(name) != format_of(FP4, EXPONENT) for name in names) or cols % GROUP:
        raise UsageError(
            "A model folder of gpt-oss has its experts in MXFP4, with whole groups of 32 columns, and these have not.",
            "Choose another mixture or shape.",
        )

    def of_all(make: Callable[[QuantRows], Bytes]) -> Callable[[int, int], Bytes]:
        return lambda start, stop: np.stack([make(weights.quants(name, start, stop)) for name in names], 1)

    def biases(start: int, stop: int) -> NDArray[np.uint16]:
        return np.stack([to_bf16(weights.vector(f"{name}.bias")[start:stop]) for name in names], 1)

    shape = (experts.count, len(names) * rows // experts.count)
    yield Tensor(f"{file_name}_blocks", "U8", (*shape, cols // GROUP, GROUP // 2), rows, of_all(mxfp4_blocks))
    yield Tensor(f"{file_name}_scales", "U8", (*shape, cols // GROUP), rows, of_all(mxfp4_exponents))
    yield Tensor(f"{file_name}_bias", "BF16", shape, rows, biases)


def mxfp4_blocks(quants: QuantRows) -> Bytes:
    """[row][group][16]: byte i has columns 2 * i and, above it, 2 * i + 1, where our codes have columns i and 16 + i.
    8 codes are moved at once, which is five times as fast as one by one."""
    words = np.ascontiguousarray(quants.codes).view(np.uint64)
    blocks = np.empty_like(words)  # [row][group][columns 0 to 15, 16 to 31]
    for half, bits in enumerate((words, words >> _FOUR_BITS)):
        columns = bits & _LOW_NIBBLES
        columns |= columns >> _FOUR_BITS  # the low byte of 16 bits has two columns now
        blocks[..., half] = columns.view(np.uint16).astype(np.uint8).view(np.uint64)[..., 0]
    return blocks.view(np.uint8)


def mxfp4_exponents(quants: QuantRows) -> Bytes:
    """[row][group]: the exponent of the scale. Ours is one less, because the values of our codes are doubled."""
    exponents: Bytes = quants.scales[..., 0].astype(np.uint8)
    return exponents + np.uint8(1)
