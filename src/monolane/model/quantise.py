"""Quantises the matrices of a bf16, fp16 or fp32 model while it is loaded, to 8 or to 4 bits (``--weights``).

Groups of 32 columns have an fp16 scale; 4-bit ones also a minimum. Codes, scale and minimum minimise the squared
error of a group: from the codes the best scale and minimum follow by least squares, and from these the nearest codes,
by turns. The head and the embedding stay at 8 bits in a 4-bit model: they are a small part of it, and the most
sensitive one. Matrices that are stored in low-bit formats stay as they are, and so do routers: another choice of
experts is a large error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monolane.errors import UnsupportedModelError, UsageError
from monolane.model.format import GROUP, I8, SCALE, SCALE_MIN, U4, Floats, Format, QuantRows, format_of, groups_of
from monolane.model.weights import Bf16Bits, Weights, from_bf16

KINDS = ("q8", "q4")
_STEPS = 3  # of least squares

Q8, Q4 = format_of(I8, SCALE), format_of(U4, SCALE_MIN)


def quantised(weights: Weights, kind: str | None) -> Weights:
    """The weights with 16-bit matrices quantised; None: as they are."""
    if kind is None:
        return weights
    if kind not in KINDS:
        raise UsageError(f"Weights cannot be quantised to {kind!r}.", f"Choose one of: {', '.join(KINDS)}.")
    return QuantisedWeights(weights, kind)


class QuantisedWeights:
    """Other weights, with their 16-bit matrices quantised."""

    converted = True

    def __init__(self, weights: Weights, kind: str) -> None:
        self.stored = weights
        self.kind = kind

    @property
    def identity(self) -> str:
        return f"{self.stored.identity}, {self.kind}"

    @property
    def widened(self) -> tuple[str, ...]:
        return self.stored.widened

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored.shape(name)

    def format(self, name: str) -> Format:
        stored = self.stored.format(name)
        if stored.is_low_bit or name.endswith("router"):
            return stored
        return Q8 if self.kind == "q8" or name in ("embed", "head") else Q4

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        """Not quantised: for targets without low-bit kernels."""
        return self.stored.rows(name, start, stop)

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        if self.stored.format(name).is_low_bit:
            return self.stored.quants(name, start, stop)
        values = from_bf16(self.stored.rows(name, start, stop))
        return to_q4(values) if self.format(name) == Q4 else to_q8(values)

    def vector(self, name: str) -> NDArray[np.float32]:
        return self.stored.vector(name)


def to_q8(values: Floats) -> QuantRows:
    """8-bit codes around zero with a scale."""
    groups = _groups(values)
    scale = _half(np.abs(groups).max(-1, keepdims=True) / np.float32(127))
    codes = np.clip(np.rint(groups * _inverse(scale)), -127, 127)
    rows = QuantRows.zeros(Q8, len(values), groups.shape[1])
    rows.codes[:] = codes.astype(np.int16) + 128
    rows.scales[:] = scale
    return rows


def to_q4(values: Floats) -> QuantRows:
    """4-bit codes with a scale and a minimum."""
    groups = _groups(values)
    minimum = groups.min(-1, keepdims=True)
    scale = (groups.max(-1, keepdims=True) - minimum) / np.float32(15)
    best: tuple[Floats, Floats, Floats, Floats] | None = None
    for _ in range(_STEPS):
        scale, minimum = _half(scale), _half(minimum)
        codes = np.clip(np.rint((groups - minimum) * _inverse(scale)), 0, 15)
        error = np.square(scale * codes + minimum - groups).sum(-1, keepdims=True)
        found = (error, codes, scale, minimum)
        best = found if best is None else _better(best, found)
        # Least squares: the line through (code, weight) of a group.
        mean, middle = codes.mean(-1, keepdims=True), groups.mean(-1, keepdims=True)
        spread = np.square(codes - mean).sum(-1, keepdims=True)
        scale = ((codes - mean) * (groups - middle)).sum(-1, keepdims=True) / np.where(spread > 0, spread, 1)
        minimum = middle - scale * mean
    assert best is not None
    _, codes, scale, minimum = best
    whole = codes.astype(np.uint8)
    rows = QuantRows.zeros(Q4, len(values), groups.shape[1])
    rows.codes[:] = whole[..., :16] | whole[..., 16:] << np.uint8(4)
    rows.scales[..., :1], rows.scales[..., 1:] = scale, minimum
    return rows


def _better(one: tuple[Floats, ...], other: tuple[Floats, ...]) -> tuple[Floats, Floats, Floats, Floats]:
    """For every group the one with the smaller error, which is the first array of each."""
    chosen = [np.where(one[0] <= other[0], mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    return chosen[0], chosen[1], chosen[2], chosen[3]


def _groups(values: Floats) -> Floats:
    """[row][group][32]; a last, shorter group repeats its last column, which changes neither its scale nor its
    minimum."""
    cols = values.shape[1]
    padded = np.pad(values, ((0, 0), (0, groups_of(cols) * GROUP - cols)), mode="edge")
    return padded.reshape(len(values), -1, GROUP)


def _half(numbers: Floats) -> Floats:
    """Rounded to fp16."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float16).astype(np.float32)
    if not np.isfinite(rounded).all():
        raise UnsupportedModelError(
            "The model has weights that are too large to be quantised, or that are not numbers.",
            "Load it without --weights.",
        )
    return rounded


def _inverse(scale: Floats) -> Floats:
    return np.where(scale > 0, 1 / np.where(scale > 0, scale, np.float32(1)), np.float32(0))
