"""How the rows of a low-bit matrix lie on a tape: tiles of a few rows, cut along k into super-blocks of 256 columns.

A super-block of a tile is, byte by byte, the structure that ``block_type`` returns. The order is that of a tensor
core's registers: thread 4r + c of a warp has columns 4c to 4c + 3 and 16 + 4c to 19 + 4c of every group, for row r.

    codes   of 4 groups, then of the next 4: [row][c][group] words of 32 bits. Byte b of a word has column 4c + b in its
            low 4 bits, and column 16 + 4c + b above. Of 8-bit codes there are two such arrays, for columns 4c + b and
            for columns 16 + 4c + b.
    high    the bits above the low 4 of 4 groups in one word, [row][c][4 groups]. 5-bit codes: bit 2g + p of byte b
            belongs to column 16p + 4c + b of group g. 6-bit codes have two words, for p = 0 and p = 1, with bits 2g and
            2g + 1 of byte b.
    scales  [group][row][numbers of a group]
    blocks  [row][numbers of a super-block]

Where tiles are ``for_gpu``, 4-bit codes lie in another order. Those that are looked up in a table have the columns of a
word in order, 4c to 4c + 3 and then 16 + 4c to 19 + 4c: an instruction looks up four of them that lie side by side. Of
the others, a word has two groups, 2i in the low 4 bits of a byte and 2i + 1 above. Of the four words of 4 groups, two
have columns 4c to 4c + 3 of both pairs, and two have columns 16 + 4c to 19 + 4c: a thread's A operand, in the order of
its registers (csrc/lowbit.cuh of the CUDA target says more).

6-bit codes of four groups, less their zero, lie in three words for columns 4c to 4c + 3 and in three for columns 16 +
4c to 19 + 4c: word i has those of group i in the upper bits of its bytes, and bits 2i and 2i + 1 of group 3 below. Four
of the six words are those of ``codes``, two those of ``high``. Signed scales of 16 columns have 128 added, so that
fewer instructions make a number of a byte.

Half tiles have half the rows, and an even number of super-blocks. Two neighbours lie as one of a whole tile does, the
first as its first rows, the second as its last.

The last super-block of a tile has fewer groups where the columns end in it, and none of the arrays has padding for the
others but ``high``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import BLOCK_GROUPS, HALF_GROUPS, Bytes, Format, QuantRows

_SHIFTS = 2 * np.arange(HALF_GROUPS, dtype=np.uint8)  # of each group in a byte of ``high``
_PAIRS = np.uint64(0x0303030303030303)  # the lowest two bits of every byte


@functools.cache
def block_type(format: Format, rows: int, groups: int) -> np.dtype[np.void]:
    """A super-block of a tile of ``rows`` rows with ``groups`` groups."""
    assert format.codes is not None
    assert format.scales is not None
    halves = -(-groups // HALF_GROUPS)
    planes = (2,) if format.codes.bits == 8 else ()
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    for half in range(halves):
        fields.append((f"codes{half}", "<u4", (*planes, rows, 4, min(HALF_GROUPS, groups - HALF_GROUPS * half))))
    if format.codes.high_bits:
        fields.append(("high", "<u4", (rows, 4, halves, format.codes.high_bits)))
    fields.append(("scales", format.scales.kind, (groups, rows, format.scales.per_group)))
    if format.scales.per_block:
        fields.append(("blocks", format.scales.block_kind, (rows, format.scales.per_block)))
    return np.dtype(fields)


def pack(rows: QuantRows, tile_rows: int, for_gpu: bool = False, halved: bool = False) -> Bytes:
    """Consecutive rows in tiles of ``tile_rows`` rows, or of half as many if ``halved``. Missing rows of the last tile
    become zeros."""
    if halved:
        rows = _doubled(rows, tile_rows // 2)
    tiles = -(-len(rows) // tile_rows)
    if len(rows) != tiles * tile_rows:
        whole = QuantRows.zeros(rows.format, tiles * tile_rows, rows.groups)
        whole.put(slice(0, len(rows)), rows)
        rows = whole
    tape = np.empty((tiles, tile_rows * rows.format.row_bytes(rows.groups * 32)), np.uint8)
    for blocks, first in _blocks(tape, rows.format, tile_rows, rows.groups):
        _fill(blocks, rows.cut(slice(None), slice(first, first + blocks.shape[1] * _groups(blocks))))
        if for_gpu:
            _to_gpu(blocks, rows.format)
    return tape.reshape(-1)


def unpack(
    tape: Bytes, format: Format, groups: int, tile_rows: int, for_gpu: bool = False, halved: bool = False
) -> QuantRows:
    """The rows of tiles, including padding rows."""
    if halved:
        return _halved(unpack(tape, format, groups // 2, tile_rows, for_gpu), tile_rows // 2)
    tape = tape.reshape(-1, tile_rows * format.row_bytes(groups * 32))
    rows = QuantRows.zeros(format, len(tape) * tile_rows, groups)
    if for_gpu:
        tape = tape.copy()
    for blocks, first in _blocks(tape, format, tile_rows, groups):
        if for_gpu:
            _from_gpu(blocks, format)
        _read(blocks, rows.cut(slice(None), slice(first, first + blocks.shape[1] * _groups(blocks))))
    return rows


def _doubled(rows: QuantRows, tile_rows: int) -> QuantRows:
    """Half tiles as whole ones: of every ``tile_rows`` rows the even super-blocks, then the odd ones as more rows."""
    missing = -len(rows) % tile_rows
    if missing:
        whole = QuantRows.zeros(rows.format, len(rows) + missing, rows.groups)
        whole.put(slice(0, len(rows)), rows)
        rows = whole
    pairs = rows.groups // (2 * BLOCK_GROUPS)

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        tiles, cols, numbers = len(array) // tile_rows, array.shape[1] // 2, array.shape[2]
        of_block = array.reshape(tiles, tile_rows, pairs, 2, cols // pairs, numbers)
        return of_block.transpose(0, 3, 1, 2, 4, 5).reshape(2 * len(array), cols, numbers)

    return QuantRows(rows.format, *(moved(array) for array in rows.arrays))


def _halved(rows: QuantRows, tile_rows: int) -> QuantRows:
    """The reverse of ``_doubled``."""
    pairs = rows.groups // BLOCK_GROUPS

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        tiles, cols, numbers = len(array) // (2 * tile_rows), array.shape[1], array.shape[2]
        of_block = array.reshape(tiles, 2, tile_rows, pairs, cols // pairs, numbers)
        return of_block.transpose(0, 2, 3, 1, 4, 5).reshape(len(array) // 2, 2 * cols, numbers)

    return QuantRows(rows.format, *(moved(array) for array in rows.arrays))


# Exchanges of bits within a number: how far apart they are, and the lower ones of them. Two exchanges sort a word of 8
# codes: byte b had columns b and 16 + b, and then the first 4 codes are columns 0 to 3. Another one exchanges the upper
# codes of a word with the lower codes of the next.
_IN_ORDER = ("<u4", ((4, 0x00F000F0), (8, 0x0000FF00)))
_IN_PAIRS = ("<u8", ((28, 0xF0F0F0F0),))


_LOW, _ALL = np.uint32(0x0F0F0F0F), np.uint32(0x3F3F3F3F)  # 4 and 6 bits of every byte
_SIGN = np.uint32(0x20202020)  # of a 6-bit code less its zero
_TWO = np.uint32(0x03030303)


def _to_gpu(blocks: NDArray[np.void], format: Format) -> None:
    """Move codes of 4 and of 6 bits to where the GPU has them."""
    if _in_threes(format):
        for words in _words_of_four_groups(blocks):
            _assign_threes(words)
    if _has_signed_scales(format):
        blocks["scales"] ^= np.int8(-128)
    for name in _codes_of_four_bits(blocks, format):
        if _in_pairs(format):
            _assign_crosswise(blocks[name], _exchanged(blocks[name], *_IN_PAIRS))
        else:
            blocks[name] = _exchanged(blocks[name], *_IN_ORDER)


def _from_gpu(blocks: NDArray[np.void], format: Format) -> None:
    """The reverse of ``_to_gpu``."""
    if _in_threes(format):
        for words in _words_of_four_groups(blocks):
            _assign_fours(words)
    if _has_signed_scales(format):
        blocks["scales"] ^= np.int8(-128)
    for name in _codes_of_four_bits(blocks, format):
        if _in_pairs(format):
            _assign_crosswise(blocks[name], blocks[name].copy())
            blocks[name] = _exchanged(blocks[name], *_IN_PAIRS)
        else:
            kind, exchanges = _IN_ORDER
            blocks[name] = _exchanged(blocks[name], kind, exchanges[::-1])


def _assign_crosswise(to: NDArray[np.uint32], words: NDArray[np.uint32]) -> None:
    """Four words each, the second and the third exchanged."""
    for place, word in enumerate((0, 2, 1, 3)):
        to[..., place] = words[..., word]


def _words_of_four_groups(blocks: NDArray[np.void]) -> Iterator[list[NDArray[np.uint32]]]:
    """The words of four groups each, four of codes and two of high bits: [tile][super-block][row][c]."""
    for half in range(blocks.dtype["high"].shape[2]):
        codes, high = blocks[f"codes{half}"], blocks["high"]
        yield [*(codes[..., place] for place in range(4)), *(high[..., half, word] for word in range(2))]


def _assign_threes(words: list[NDArray[np.uint32]]) -> None:
    """Codes with their low 4 bits in a word for each group, and their high bits in two, as two times three words."""
    low, high = [word.copy() for word in words[:4]], [word.copy() for word in words[4:]]
    for p in range(2):
        codes = [
            ((low[g] >> np.uint32(4 * p) & _LOW) | (high[p] >> np.uint32(2 * g) & _TWO) << np.uint32(4)) ^ _SIGN
            for g in range(4)
        ]
        for i in range(3):
            words[3 * p + i][...] = codes[i] << np.uint32(2) | codes[3] >> np.uint32(2 * i) & _TWO


def _assign_fours(words: list[NDArray[np.uint32]]) -> None:
    """The reverse of ``_assign_threes``."""
    threes = [word.copy() for word in words]
    for word in words:
        word[...] = 0
    for p in range(2):
        first = threes[3 * p : 3 * p + 3]
        last = first[0] & _TWO | (first[1] & _TWO) << np.uint32(2) | (first[2] & _TWO) << np.uint32(4)
        for g, code in enumerate([*(word >> np.uint32(2) & _ALL for word in first), last]):
            words[g][...] |= ((code ^ _SIGN) & _LOW) << np.uint32(4 * p)
            words[4 + p][...] |= ((code ^ _SIGN) >> np.uint32(4) & _TWO) << np.uint32(2 * g)


def _in_threes(format: Format) -> bool:
    return format.codes is not None and format.codes.bits == 6


def _has_signed_scales(format: Format) -> bool:
    return format.scales is not None and format.scales.kind == "i1"


def _in_pairs(format: Format) -> bool:
    return format.codes is not None and format.codes.table is None


def _codes_of_four_bits(blocks: NDArray[np.void], format: Format) -> list[str]:
    four = format.codes is not None and format.codes.bits == 4
    return [name for name in blocks.dtype.names or () if four and name.startswith("codes")]


def _exchanged(words: NDArray[np.uint32], kind: str, exchanges: tuple[tuple[int, int], ...]) -> NDArray[np.uint32]:
    words = words.copy(order="C")
    numbers, number = words.view(kind), np.dtype(kind).type
    for distance, lower in exchanges:
        differ = numbers >> number(distance)
        differ ^= numbers
        differ &= number(lower)
        numbers ^= differ
        differ <<= number(distance)
        numbers ^= differ
    return words


def _blocks(tape: Bytes, format: Format, tile_rows: int, groups: int) -> list[tuple[NDArray[np.void], int]]:
    """(super-blocks with equally many groups, [tile][super-block]; the first of their groups)."""
    whole, last = divmod(groups, BLOCK_GROUPS)
    full = block_type(format, tile_rows, BLOCK_GROUPS)
    end = whole * full.itemsize
    found = [(_view(tape, 0, end, full), 0)] if whole else []
    return found + (
        [(_view(tape, end, tape.shape[1], block_type(format, tile_rows, last)), groups - last)] if last else []
    )


def _view(tape: Bytes, start: int, stop: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """Bytes [start, stop) of every tile as super-blocks, without a copy."""
    shape, strides = (len(tape), (stop - start) // kind.itemsize), (tape.strides[0], kind.itemsize)
    return np.ndarray(shape, kind, tape.data, start, strides)


def _groups(blocks: NDArray[np.void]) -> int:
    assert blocks.dtype.fields is not None
    return int(blocks.dtype.fields["scales"][0].shape[0])


def _by_block(array: NDArray[np.generic], blocks: NDArray[np.void]) -> NDArray[np.generic]:
    """[row][group or super-block][...] as [tile][row of the tile][super-block][group of it][...]"""
    tiles, count = blocks.shape
    return array.reshape(tiles, len(array) // tiles, count, array.shape[1] // count, *array.shape[2:])


def _fill(blocks: NDArray[np.void], rows: QuantRows) -> None:
    codes, high, scales, numbers = (_by_block(array, blocks) for array in rows.arrays)
    names = blocks.dtype.names or ()
    for group, planes in enumerate(_by_group(codes)):
        half, place = divmod(group, HALF_GROUPS)
        words = blocks[f"codes{half}"]
        if len(planes) == 2:  # [tile][block][plane][row][c][group]
            words[..., place] = planes.transpose(1, 2, 0, 3, 4)
        else:
            words[..., place] = planes[0]
    if "high" in names:
        _fill_high(blocks["high"], _by_group(high)[:, 0])
    if scales.size:
        _joint(blocks["scales"])[...] = _joint(scales).transpose(0, 2, 3, 1)
    if "blocks" in names:
        _joint(blocks["blocks"])[...] = _joint(numbers[:, :, :, 0]).transpose(0, 2, 1)


def _by_group(array: NDArray[np.generic]) -> NDArray[np.uint32]:
    """[group][plane][tile][block][row][c], of [tile][row][block][group][bytes]. 16 bytes are copied at once."""
    planes = np.ascontiguousarray(array).view(np.complex128).transpose(3, 4, 0, 2, 1)
    return np.ascontiguousarray(planes)[..., None].view("<u4")


def _joint(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The numbers of the last axis as one number, which is copied at once."""
    size = array.shape[-1] * array.itemsize
    together = array if array.strides[-1] == array.itemsize else np.ascontiguousarray(array)
    return together.view(f"<u{size}")[..., 0]


def _fill_high(high: NDArray[np.uint32], by_group: NDArray[np.uint32]) -> None:
    """Joins the high bits of 4 groups at a time: [tile][block][row][c][half][word]"""
    for half, word in product(range(high.shape[4]), range(high.shape[5])):
        joined = np.zeros((*by_group.shape[1:-1], 2), np.uint64)
        for g, part in enumerate(by_group[HALF_GROUPS * half : HALF_GROUPS * (half + 1)]):
            bits = part.view(np.uint64) & _PAIRS << np.uint64(2 * word)
            move = 2 * (g - word)
            bits = bits << np.uint64(move) if move > 0 else bits >> np.uint64(-move)
            joined |= bits
        high[:, :, :, :, half, word] = joined.view("<u4")


def _read(blocks: NDArray[np.void], rows: QuantRows) -> None:
    """The reverse of ``_fill``."""
    codes, high, scales, numbers = (_by_block(array, blocks) for array in rows.arrays)
    groups, names = _groups(blocks), blocks.dtype.names or ()
    for half, start in enumerate(range(0, groups, HALF_GROUPS)):
        part = blocks[f"codes{half}"]
        order = (0, 3, 1, 5, 2, 4) if part.ndim == 6 else (0, 2, 1, 4, 3)
        part = np.ascontiguousarray(part.transpose(order)).view(np.uint8)
        stop = min(groups, start + HALF_GROUPS)
        codes[..., start:stop, :] = part.reshape(*part.shape[:4], -1)
        if "high" in names:
            joined = np.ascontiguousarray(blocks["high"][:, :, :, :, half, :, None]).view(np.uint8)
            word = joined[..., None] >> _SHIFTS[: stop - start] & np.uint8(3)
            bits = word[:, :, :, :, 0] if word.shape[4] == 1 else word[:, :, :, :, 0] | word[:, :, :, :, 1] << 2
            high[..., start:stop, :] = bits.reshape(*bits.shape[:3], 16, -1).transpose(0, 2, 1, 4, 3)
    scales[...] = blocks["scales"].transpose(0, 3, 1, 2, 4)
    if "blocks" in names:
        numbers[:, :, :, 0] = blocks["blocks"].transpose(0, 2, 1, 3)
