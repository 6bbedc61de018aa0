"""Formats: how the kernels have the weights of a matrix. A format owns its bytes from the file to the tape.

A low-bit weight is an integer, its *code*, with a scale, and in some formats a minimum, per group of 32 columns:

    weight = scale * (code - zero) + minimum        or        weight = scale * table[code]

or an 8-bit floating-point number with a scale per 128 columns. A format is a kind of code and a kind of scales.
Everything a file can hold is one of a few of each, so few kernels serve all files. ``QuantRows`` holds rows of a matrix
in such a format, still by row and group; ``program/tiles.py`` lays them out as a worker streams them. docs/formats.md
lists the formats with their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Floats = NDArray[np.float32]

GROUP = 32  # columns that share a scale
BLOCK_GROUPS = 8  # groups of a super-block; the 8 groups are 8 rows of a tensor core's A operand
BLOCK = GROUP * BLOCK_GROUPS  # columns of a super-block
HALF_GROUPS = 4  # groups whose codes lie together: 16 bytes of 4-bit codes for each of the 4 threads of a row


@dataclass(frozen=True)
class Codes:
    """The integers of a format: ``bits`` each, unsigned. Their values are code - zero, or those of a table, or those of
    E4M3 where they are floating-point numbers."""

    name: str
    bits: int
    zero: int
    table: tuple[int, ...] | None = None
    is_float: bool = False

    @cached_property
    def values(self) -> Floats:
        """The value of every code; NaN where it has none."""
        if self.is_float:
            return _e4m3()
        return np.array(self.table or np.arange(1 << self.bits) - self.zero, np.float32)

    @cached_property
    def pairs(self) -> NDArray[np.complex64]:
        """The values of both codes of a byte, as one number: that is looked up and copied at once."""
        codes = np.arange(256)
        both = np.stack([self.values[codes & 15], self.values[codes >> 4]], 1)
        return both.view(np.complex64).reshape(-1)

    @property
    def group_bytes(self) -> int:
        """Bytes of a group that hold the low 4 bits of every code, or all 8."""
        return GROUP if self.bits == 8 else GROUP // 2

    @property
    def high_bits(self) -> int:
        """Bits of a code above the low 4, which lie apart."""
        return self.bits - 4 if self.bits < 8 else 0


@dataclass(frozen=True)
class Scales:
    """The scales of a format: ``per_group`` numbers of type ``kind`` for each group and, in two-level formats,
    ``per_block`` numbers of type ``block_kind`` for each super-block, which multiply those of its groups."""

    name: str
    kind: str
    per_group: int
    per_block: int
    block_kind: str = "<f2"

    @property
    def group_bytes(self) -> int:
        return np.dtype(self.kind).itemsize * self.per_group

    @property
    def block_bytes(self) -> int:
        return np.dtype(self.block_kind).itemsize * self.per_block


@dataclass(frozen=True)
class Format:
    """How the weights of a matrix are stored: bf16, or codes and scales.

    A matrix that is ``ordered`` has its columns in an order of its own, sorted by group (the act-order of GPTQ). The
    vector of its name and ``.order`` has the column of its input behind each of them.
    """

    name: str
    codes: Codes | None = None
    scales: Scales | None = None
    ordered: bool = False

    @property
    def is_low_bit(self) -> bool:
        return self.codes is not None

    @property
    def is_integer(self) -> bool:
        """Whether the input of a matrix becomes integers (program/activations.py)."""
        return self.codes is not None and not self.codes.is_float

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row with that many columns; of a low-bit format in whole groups."""
        if self.codes is None or self.scales is None:
            return 2 * cols
        groups = groups_of(cols)
        high = GROUP // 2 * self.codes.high_bits  # of 4 groups; a last, shorter half of a super-block has as many
        halves, blocks = -(-groups // HALF_GROUPS), -(-groups // BLOCK_GROUPS)
        per_group = self.codes.group_bytes + self.scales.group_bytes
        return groups * per_group + halves * high + blocks * self.scales.block_bytes

    @property
    def bits(self) -> float:
        """Bits of a weight, with its share of the scales."""
        return self.row_bytes(BLOCK) * 8 / BLOCK


I4 = Codes("i4", 4, zero=8)
U4 = Codes("u4", 4, zero=0)
I5 = Codes("i5", 5, zero=16)
U5 = Codes("u5", 5, zero=0)
I6 = Codes("i6", 6, zero=32)
I8 = Codes("i8", 8, zero=128)
NL4 = Codes("nl4", 4, 0, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
FP4 = Codes("fp4", 4, 0, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))  # E2M1, doubled
E4M3 = Codes("e4m3", 8, 0, is_float=True)  # FP8

SCALE = Scales("g32", "<f2", 1, 0)  # a scale
EXPONENT = Scales("e32", "u1", 1, 0)  # the exponent of a scale that is a power of two, as fp32 has it; 0: a scale of 0
SCALE_MIN = Scales("g32m", "<f2", 2, 0)  # a scale and a minimum
SCALE_ZERO = Scales("g32z", "<f2", 2, 0)  # a scale and a zero point: a whole number, subtracted from every code
BLOCK_MIN = Scales("k32", "u1", 2, 2)  # 8-bit scale and minimum, times the super-block's scale and minus its minimum
BLOCK_16 = Scales("k16", "i1", 2, 1)  # signed 8-bit scales of the first and of the last 16 columns, times the block's
BLOCK_128 = Scales("k128", "<f4", 0, 2, "<f4")  # a scale of each half of the super-block

BF16 = Format("bf16")
_KNOWN = (
    (I4, SCALE), (U4, SCALE_MIN), (U4, SCALE_ZERO), (U4, BLOCK_MIN), (I4, BLOCK_16), (NL4, SCALE), (NL4, BLOCK_16),
    (FP4, EXPONENT), (I5, SCALE), (U5, SCALE_MIN), (U5, BLOCK_MIN), (I6, BLOCK_16), (I8, SCALE), (I8, SCALE_ZERO),
    (E4M3, BLOCK_128),
)  # fmt: skip
FORMATS = {
    format.name: format
    for format in (BF16, *(Format(f"{codes.name}{scales.name}", codes, scales) for codes, scales in _KNOWN))
}

FormatOf = Callable[[str], Format]  # from the canonical name of a matrix


def all_bf16(_: str) -> Format:
    """The formats of a model that is widened to bf16 as a whole."""
    return BF16


def format_of(codes: Codes, scales: Scales) -> Format:
    return FORMATS[codes.name + scales.name]


def groups_of(cols: int) -> int:
    return -(-cols // GROUP)


@dataclass(frozen=True)
class QuantRows:
    """Rows of a matrix in a low-bit format.

    codes   [row][group][16]: byte i has the low 4 bits of column i, and above them those of column 16 + i; or, of 8-bit
            codes, [row][group][32]
    high    [row][group][16]: the bits above the low 4 of columns i and 16 + i, the latter above the former; or empty
    scales  [row][group][numbers per group]
    blocks  [row][super-block][numbers per super-block]
    """

    format: Format
    codes: Bytes
    high: Bytes
    scales: NDArray[np.generic]
    blocks: NDArray[np.generic]

    @classmethod
    def zeros(cls, format: Format, rows: int, groups: int) -> QuantRows:
        """Rows whose weights are all zero, because their scales are."""
        codes, scales = _low_bit(format)
        return cls(
            format,
            np.zeros((rows, groups, codes.group_bytes), np.uint8),
            np.zeros((rows, groups, GROUP // 2 if codes.high_bits else 0), np.uint8),
            np.zeros((rows, groups, scales.per_group), scales.kind),
            np.zeros((rows, -(-groups // BLOCK_GROUPS), scales.per_block), scales.block_kind),
        )

    def __len__(self) -> int:
        rows: int = self.codes.shape[0]
        return rows

    @property
    def groups(self) -> int:
        return int(self.codes.shape[1])

    @cached_property
    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.codes, self.high, self.scales, self.blocks

    def put(self, where: slice | NDArray[np.int64], rows: QuantRows) -> None:
        """Set some rows."""
        for mine, theirs in zip(self.arrays, rows.arrays, strict=True):
            mine[where] = theirs

    def cut(self, rows: slice, groups: slice = slice(None)) -> QuantRows:
        """Some rows and groups. Of a two-level format, groups are cut at the edges of super-blocks."""
        start, stop, _ = groups.indices(self.groups)
        blocks = slice(start // BLOCK_GROUPS, -(-stop // BLOCK_GROUPS))
        return QuantRows(
            self.format,
            self.codes[rows, groups],
            self.high[rows, groups],
            self.scales[rows, groups],
            self.blocks[rows, blocks],
        )

    def widened(self, groups: int) -> QuantRows:
        """The same rows with that many groups; those that are added are zero."""
        if groups == self.groups:
            return self
        wide = QuantRows.zeros(self.format, len(self), groups)
        for mine, theirs in zip(wide.arrays, self.arrays, strict=True):
            mine[:, : theirs.shape[1]] = theirs
        return wide

    def values(self, cols: int) -> Floats:
        """The weights in fp32, without padding columns."""
        values = self._codes()
        scale, minimum = self._scale_and_minimum()
        values *= scale
        if minimum is not None:
            values += minimum
        return np.ascontiguousarray(values.reshape(len(self), -1)[:, :cols])

    def _codes(self) -> Floats:
        """[row][group][32]: the values of the codes."""
        kind, _ = _low_bit(self.format)
        if kind.bits == 8:
            return kind.values.take(self.codes)
        if kind.bits == 4:
            both = kind.pairs.take(self.codes).view(np.float32).reshape(*self.codes.shape, 2)
            return both.swapaxes(2, 3).reshape(*self.codes.shape[:2], GROUP)
        low = np.concatenate([self.codes & 15, self.codes >> 4], 2)
        mask = (1 << kind.high_bits) - 1
        low |= np.concatenate([self.high & mask, self.high >> kind.high_bits], 2) << 4
        return kind.values.take(low)

    def _scale_and_minimum(self) -> tuple[Floats, Floats | None]:
        """Of every group, or of every column; what is added last, or None."""
        _, kind = _low_bit(self.format)
        if kind == EXPONENT:
            return (self.scales.astype(np.uint32) << np.uint32(23)).view(np.float32), None
        numbers = self.scales.astype(np.float32)
        if kind == SCALE:
            return numbers, None
        if kind == SCALE_MIN:
            return numbers[..., :1], numbers[..., 1:]
        if kind == SCALE_ZERO:
            return numbers[..., :1], -numbers[..., :1] * numbers[..., 1:]
        if kind == BLOCK_128:
            halves = self.blocks.astype(np.float32).reshape(len(self), -1, 1)
            return np.repeat(halves, HALF_GROUPS, 1)[:, : self.groups], None
        blocks = np.repeat(self.blocks.astype(np.float32), BLOCK_GROUPS, 1)[:, : self.groups]
        if kind == BLOCK_MIN:
            return blocks[..., :1] * numbers[..., :1], -blocks[..., 1:] * numbers[..., 1:]
        return np.repeat(blocks * numbers, GROUP // 2, 2), None


def _e4m3() -> Floats:
    """The value of every byte: 4 bits of exponent with a bias of 7, 3 bits of mantissa, no infinities."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    values = np.where(codes & 0x7F == 0x7F, np.nan, np.where(codes & 0x80, -size, size))
    return values.astype(np.float32)


def _low_bit(format: Format) -> tuple[Codes, Scales]:
    assert format.codes is not None
    assert format.scales is not None, "bf16 has neither codes nor scales"
    return format.codes, format.scales
