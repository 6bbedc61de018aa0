"""Models in low-bit formats: random codes and scales in the shapes of random models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import BF16, EXPONENT, GROUP, Format, QuantRows, groups_of
from monolane.model.weights import Bf16Bits, Weights, matrix_values, to_bf16


def random_rows(format: Format, rows: int, cols: int, size: float, seed: int) -> QuantRows:
    """Weights with a deviation of about ``size``. Some groups are zero."""
    random = np.random.default_rng(seed)
    found = QuantRows.zeros(format, rows, groups_of(cols))
    assert format.codes is not None
    found.codes[:] = random.integers(0, 256, found.codes.shape)
    found.high[:] = random.integers(0, 1 << 2 * format.codes.high_bits, found.high.shape)
    if format.codes.is_float:
        found.codes[found.codes & 0x7F == 0x7F] = 0  # not a number
        found.blocks[:] = random.uniform(0.5, 1, found.blocks.shape)
        found.blocks[random.random(found.blocks.shape) < 0.05] = 0
    elif format.scales == EXPONENT:
        found.scales[:] = random.integers(125, 128, found.scales.shape)
    elif found.scales.dtype.kind == "f":
        found.scales[:] = random.uniform(0.5, 1, found.scales.shape)
        if found.scales.shape[2] == 2 and format.name.endswith("z"):
            found.scales[..., 1] = random.integers(0, 16, found.scales.shape[:2])
        elif found.scales.shape[2] == 2:
            found.scales[..., 1] *= -(1 << format.codes.bits) / 2
    else:
        found.scales[:] = random.integers(20, 64, found.scales.shape)
        found.blocks[:] = random.uniform(0.5, 1, found.blocks.shape)
        if found.blocks.shape[2] == 2:
            found.blocks[..., 1] *= (1 << format.codes.bits) / 2
    found.scales[random.random(found.scales.shape[:2]) < 0.05] = 0
    factor = size / max(1e-3, float(found.values(cols).std()))
    if format.scales == EXPONENT:
        found.scales[found.scales > 0] += np.int8(round(np.log2(factor))).view(np.uint8)  # wraps around
        return found
    part = found.blocks if found.blocks.size else found.scales
    if format.name.endswith("z"):
        part = found.scales[..., :1]
    part[...] = part * np.float16(factor) if factor > 1e-4 else (part * factor).astype(np.float16)
    return found


@dataclass
class LowBitWeights:
    """The weights of another model, with random matrices in low-bit formats. ``formats``: those of the matrices in the
    order of their names, again and again."""

    inner: Weights
    names: Sequence[str]
    formats: Sequence[Format]
    converted: bool = False
    widened: tuple[str, ...] = ()
    identity: str = "random"
    _made: dict[str, QuantRows] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.inner.shape(name)

    def format(self, name: str) -> Format:
        # Gate and up have the same one.
        name = name.replace(".up", ".gate")
        return self.formats[sorted(self.names).index(name) % len(self.formats)] if name in self.names else BF16

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        if name not in self._made:
            rows, cols = self.shape(name)
            seed = sum(map(ord, name))
            self._made[name] = random_rows(self.format(name), rows, cols, 0.08, seed)
        return self._made[name].cut(slice(start, stop))

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if not self.format(name).is_low_bit:
            return self.inner.rows(name, start, stop)
        return to_bf16(self.quants(name, start, stop).values(self.shape(name)[1]))

    def vector(self, name: str) -> NDArray[np.float32]:
        return self.inner.vector(name)


class OrderedWeights(LowBitWeights):
    """The same with the columns of layers in orders of their own, as GPTQ makes them, where they are whole groups. q, k
    and v have the same order, and so have gate and up."""

    def format(self, name: str) -> Format:
        format = super().format(name)
        ordered = name in self.names and "layers" in name and self.shape(name)[1] % GROUP == 0
        return replace(format, ordered=ordered and format.is_integer)

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        return to_bf16(matrix_values(self, name, start, stop))

    def vector(self, name: str) -> NDArray[np.float32]:
        if not name.endswith(".order"):
            return super().vector(name)
        matrix = name.removesuffix(".order")
        layer, _, part = matrix.rpartition(".")
        same = {"k": "q", "v": "q", "up": "gate"}.get(part, part)
        seed = sum(map(ord, f"{layer}.{same}"))
        return np.random.default_rng(seed).permutation(self.shape(matrix)[1]).astype(np.float32)
