"""Repacks the blocks of GGUF files into our formats, without loss.

A GGUF type has blocks of 32 columns with an fp16 scale (and minimum), or super-blocks of 256 columns with small scales
of their groups. Every type here has a format that holds exactly what a block holds; a type that has none is widened to
bf16 by ``dequantize`` of the gguf package.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import (
    BLOCK_16,
    BLOCK_GROUPS,
    BLOCK_MIN,
    EXPONENT,
    FP4,
    I4,
    I5,
    I6,
    I8,
    NL4,
    SCALE,
    SCALE_MIN,
    U4,
    U5,
    Bytes,
    Codes,
    Format,
    Halves,
    QuantRows,
    Scales,
    format_of,
)

Repack = Callable[[Bytes], QuantRows]  # from [row][block][bytes]

_EVERY, _PAIRS = list(range(8)), [0, 2, 4, 6]  # shifts to single bits and to pairs of bits
_SIXTEEN = np.complex128  # 16 bytes that are copied at once
_NO_BLOCKS = np.zeros((0, 0, 0), np.float16)


def _plain(codes: Codes, scales: Scales, raw: Bytes, at: int, high: Bytes | None = None) -> QuantRows:
    """A block that begins with fp16 numbers and has codes from byte ``at`` on, in our order."""
    numbers = _halves(raw[..., : scales.group_bytes])
    return _rows(codes, scales, raw[..., at:], high, numbers)


def _rows(
    codes: Codes,
    scales: Scales,
    low: Bytes,
    high: Bytes | None,
    numbers: NDArray[np.generic],
    blocks: Halves = _NO_BLOCKS,
) -> QuantRows:
    rows, groups = low.shape[:2]
    high = np.zeros((rows, groups, 0), np.uint8) if high is None else high
    blocks = blocks if blocks.size else np.zeros((rows, -(-groups // BLOCK_GROUPS), 0), np.float16)
    return QuantRows(format_of(codes, scales), low, high, numbers, blocks)


def _halves(raw: Bytes) -> Halves:
    """Bytes as fp16 numbers."""
    return np.ascontiguousarray(raw).view("<f2")


def _bits(raw: Bytes, shifts: list[int], mask: int) -> Bytes:
    """[..., shift, byte]: the bits of every byte at each of the shifts."""
    return raw[..., None, :] >> np.array(shifts, np.uint8)[:, None] & np.uint8(mask)


def _pair(raw: Bytes, bits: int) -> Bytes:
    """[row][group][16] from [..., 32]: columns i and 16 + i in one byte, the latter ``bits`` higher."""
    return np.asarray(raw[..., :16] | raw[..., 16:] << np.uint8(bits)).reshape(raw.shape[0], -1, 16)


def _fifth_bits(raw: Bytes) -> Bytes:
    """From 32 bits, one for each column of a group."""
    return _pair(np.unpackbits(raw, -1, bitorder="little"), 1)


def _q4_0(raw: Bytes) -> QuantRows:
    return _plain(I4, SCALE, raw, 2)


def _q4_1(raw: Bytes) -> QuantRows:
    return _plain(U4, SCALE_MIN, raw, 4)


def _q5_0(raw: Bytes) -> QuantRows:
    return _plain(I5, SCALE, raw, 6, _fifth_bits(raw[..., 2:6]))


def _q5_1(raw: Bytes) -> QuantRows:
    return _plain(U5, SCALE_MIN, raw, 8, _fifth_bits(raw[..., 4:8]))


def _q8_0(raw: Bytes) -> QuantRows:
    """Signed codes become unsigned ones around 128."""
    return _rows(I8, SCALE, raw[..., 2:] ^ np.uint8(0x80), None, _halves(raw[..., :2]))


def _iq4_nl(raw: Bytes) -> QuantRows:
    return _plain(NL4, SCALE, raw, 2)


def _mxfp4(raw: Bytes) -> QuantRows:
    return mxfp4_rows(raw[..., 0], raw[..., 1:])


def mxfp4_rows(exponents: Bytes, codes: Bytes) -> QuantRows:
    """Rows of MXFP4 from exponents [row][group], with a bias of 127, and codes [row][group][16]. Ours is one less,
    because the table has twice the values."""
    return _rows(FP4, EXPONENT, codes, None, (exponents - np.uint8(1))[..., None])


def mxfp4_fits(raw: Bytes) -> bool:
    """Whether our format holds the scales of all blocks."""
    return mxfp4_scales_fit(raw[..., 0])


def mxfp4_scales_fit(exponents: Bytes) -> bool:
    """Not the two smallest ones, half of which is no normal number of fp32, nor 255, which is no number."""
    return bool(exponents.min() >= 2 and exponents.max() <= 254)


def _eight(byte: int) -> np.uint64:
    """A byte eight times in a word. Bytes are combined in words: there are few of each kind side by side, and NumPy is
    slow with short rows."""
    return np.uint64(byte * 0x0101010101010101)


_EVEN = {1: _eight(0x55), 2: _eight(0x33), 4: _eight(0x0F)}  # the bits of even groups, where each has so many of a byte
_BOTH = {1: _eight(0x03), 2: _eight(0x0F)}  # twice as many, the lowest of a byte


def _split(raw: Bytes, bits: int, groups: NDArray[np.complex128]) -> None:
    """Fill ``groups``, [..., 32 bytes of ``raw``, group of 16 bytes]. Byte i of ``raw`` has column i of 8 / ``bits``
    groups, the first in its lowest bits. Byte i of a group gets column i, and above it column 16 + i."""
    halves = raw.view(_SIXTEEN)
    first, last = (halves[..., half::2].copy().view(np.uint64) for half in (0, 1))
    even, odd = first & _EVEN[bits], last & _EVEN[bits]
    first ^= even
    last ^= odd
    even |= np.left_shift(odd, np.uint64(bits), out=odd)
    odd = np.right_shift(first, np.uint64(bits), out=first)
    odd |= last
    for group in range(8 // bits):
        part = odd if group % 2 else even  # the bits of columns i and 16 + i are side by side
        if bits in _BOTH:
            part = part >> np.uint64(group // 2 * 2 * bits)
            part &= _BOTH[bits]
        groups[..., group] = part.view(_SIXTEEN).reshape(groups.shape[:-1])


def _groups(raw: Bytes, bits: int) -> Bytes:
    """[row][group][16] of super-blocks whose groups follow each other."""
    groups = np.empty((*raw.shape[:-1], raw.shape[-1] // 32, 8 // bits), _SIXTEEN)
    _split(raw, bits, groups)
    return groups.view(np.uint8).reshape(raw.shape[0], -1, 16)


def _scales_and_minima(raw: Bytes) -> Bytes:
    """The 6-bit scales and minima of 8 groups, from 12 bytes."""
    low, high, rest = np.moveaxis(np.ascontiguousarray(raw).view("<u4"), -1, 0)
    numbers = np.empty((*raw.shape[:-1], 2, 2), "<u4")  # [four groups][scale or minimum], a byte for each group
    six, four, two = np.uint32(0x3F3F3F3F), np.uint32(0x0F0F0F0F), np.uint32(0x30303030)
    numbers[..., 0, 0], numbers[..., 0, 1] = low & six, high & six
    numbers[..., 1, 0] = rest & four | low >> np.uint32(2) & two
    numbers[..., 1, 1] = rest >> np.uint32(4) & four | high >> np.uint32(2) & two
    words = numbers.view("<u8")
    # The two middle quarters of a word change places, and then those of each half: scales and minima alternate.
    for bits, quarter in ((np.uint64(16), np.uint64(0xFFFF0000)), (np.uint64(8), np.uint64(0x0000FF000000FF00))):
        differ = words >> bits
        differ ^= words
        differ &= quarter
        words ^= differ
        differ <<= bits
        words ^= differ
    return numbers.view(np.uint8).reshape(raw.shape[0], -1, 2)


def _q4_k(raw: Bytes) -> QuantRows:
    blocks = _halves(raw[..., :4])
    return _rows(U4, BLOCK_MIN, _groups(raw[..., 16:], 4), None, _scales_and_minima(raw[..., 4:16]), blocks)


def _q5_k(raw: Bytes) -> QuantRows:
    blocks, high = _halves(raw[..., :4]), _groups(raw[..., 16:48], 1)
    return _rows(U5, BLOCK_MIN, _groups(raw[..., 48:], 4), high, _scales_and_minima(raw[..., 4:16]), blocks)


def _q6_k(raw: Bytes) -> QuantRows:
    rows, blocks = raw.shape[:2]
    # [half of the super-block][low or high nibbles][group]: the low nibbles are groups 0 and 1, the high ones 2 and 3.
    codes = np.empty((rows, blocks, 2, 2, 2), _SIXTEEN)
    _split(raw[..., :128], 4, codes.swapaxes(-1, -2))
    low, high = codes.view(np.uint8).reshape(rows, -1, 16), _groups(raw[..., 128:192], 2)
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).reshape(rows, -1, 2)
    return _rows(I6, BLOCK_16, low, high, scales, _halves(raw[..., 208:]))


def _iq4_xs(raw: Bytes) -> QuantRows:
    rows, blocks = raw.shape[:2]
    upper = np.ascontiguousarray(raw[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = np.stack([raw[..., 4:8] & 15, raw[..., 4:8] >> 4], -1).reshape(rows, blocks, BLOCK_GROUPS)
    scales = (lower | upper.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    twice = np.repeat(scales.reshape(rows, -1, 1), 2, -1)  # the same for both halves of a group
    codes = raw[..., 8:].reshape(rows, -1, 16)
    return _rows(NL4, BLOCK_16, codes, None, twice, _halves(raw[..., :2]))


def _q3_k(raw: Bytes) -> QuantRows:
    """3-bit codes in 4 bits: code - 4 is (code + 4) - 8."""
    rows, blocks = raw.shape[:2]
    low = _bits(raw[..., 32:96].reshape(rows, blocks, 2, 32), _PAIRS, 3).reshape(rows, blocks, BLOCK_GROUPS, 32)
    codes = (low | _bits(raw[..., :32], _EVERY, 1) << np.uint8(2)) + np.uint8(4)
    nibbles = raw[..., 96:104]
    lower = np.concatenate([nibbles & 15, nibbles >> 4], -1)
    upper = _bits(raw[..., 104:108], _PAIRS, 3).reshape(rows, blocks, 16)
    scales = (lower | upper << np.uint8(4)).astype(np.int8) - np.int8(32)
    return _rows(I4, BLOCK_16, _pair(codes, 4), None, scales.reshape(rows, -1, 2), _halves(raw[..., 108:]))


REPACKED: dict[str, tuple[Format, Repack]] = {
    "Q4_0": (format_of(I4, SCALE), _q4_0),
    "Q4_1": (format_of(U4, SCALE_MIN), _q4_1),
    "Q5_0": (format_of(I5, SCALE), _q5_0),
    "Q5_1": (format_of(U5, SCALE_MIN), _q5_1),
    "Q8_0": (format_of(I8, SCALE), _q8_0),
    "Q3_K": (format_of(I4, BLOCK_16), _q3_k),
    "Q4_K": (format_of(U4, BLOCK_MIN), _q4_k),
    "Q5_K": (format_of(U5, BLOCK_MIN), _q5_k),
    "Q6_K": (format_of(I6, BLOCK_16), _q6_k),
    "IQ4_NL": (format_of(NL4, SCALE), _iq4_nl),
    "IQ4_XS": (format_of(NL4, BLOCK_16), _iq4_xs),
    "MXFP4": (format_of(FP4, EXPONENT), _mxfp4),
}
