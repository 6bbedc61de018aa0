"""The bytes of low-bit tiles: nothing is lost, and each weight is where the kernels look for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from low_bit import random_rows
from monolane.model.format import FORMATS, Format, QuantRows
from monolane.program import tiles
from monolane.program.activations import LARGEST, quantised, rounded

LOW_BIT = [format for format in FORMATS.values() if format.is_low_bit]


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(LOW_BIT), st.integers(1, 20), st.integers(1, 21), st.sampled_from([1, 4, 8]))
def test_packing_can_be_undone(format: Format, rows: int, groups: int, tile_rows: int) -> None:
    made = random_rows(format, rows, 32 * groups, 0.1, rows * groups)
    tape = tiles.pack(made, tile_rows)
    assert tape.nbytes == -(-rows // tile_rows) * tile_rows * format.row_bytes(32 * groups)
    found = tiles.unpack(tape, format, groups, tile_rows)
    for ours, theirs in zip(found.arrays, made.arrays, strict=True):
        np.testing.assert_array_equal(ours[:rows], theirs)
        assert not ours[rows:].any()


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(LOW_BIT), st.integers(1, 20), st.integers(1, 3))
def test_half_tiles_hold_two_super_blocks_as_a_whole_tile_holds_one(format: Format, rows: int, pairs: int) -> None:
    made = random_rows(format, rows, 512 * pairs, 0.1, rows * pairs)
    tape = tiles.pack(made, 8, halved=True)
    assert tape.nbytes == -(-rows // 4) * 4 * format.row_bytes(512 * pairs)
    found = tiles.unpack(tape, format, 16 * pairs, 8, halved=True)
    for ours, theirs in zip(found.arrays, made.arrays, strict=True):
        np.testing.assert_array_equal(ours[:rows], theirs)
        assert not ours[rows:].any()
    # Row 2 of a half tile, first and second super-block, are rows 2 and 6 of a whole tile.
    whole = tiles.unpack(tape, format, 8 * pairs, 8)
    for block, row in ((0, 2), (1, 6)):
        if rows > 2:
            np.testing.assert_array_equal(whole.codes[row, :8], made.codes[2, 8 * block : 8 * block + 8])


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(LOW_BIT), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_the_order_of_the_gpu_can_be_undone(format: Format, rows: int, blocks: int, halved: bool) -> None:
    groups = 8 * blocks * (1 + halved)
    made = random_rows(format, rows, 32 * groups, 0.1, rows * groups)
    tape = tiles.pack(made, 8, for_gpu=True, halved=halved)
    found = tiles.unpack(tape, format, groups, 8, for_gpu=True, halved=halved)
    for ours, theirs in zip(found.arrays, made.arrays, strict=True):
        np.testing.assert_array_equal(ours[:rows], theirs)


def test_a_word_of_the_gpu_has_two_groups() -> None:
    """The 16 bytes of thread 4r + c: the first columns of groups 0 and 1, those of 2 and 3, then the last columns."""
    format = FORMATS["u4k32"]
    rows = QuantRows.zeros(format, 8, 8)
    row, c, b = 5, 2, 3
    for group in range(4):
        rows.codes[row, group, 4 * c + b] = (group + 9) << 4 | group + 1  # column 16 + 4c + b above column 4c + b
    tape = tiles.pack(rows, 8, for_gpu=True)
    place = 16 * (4 * row + c) + b
    assert [int(tape[place + 4 * word]) for word in range(4)] == [0x21, 0x43, 0xA9, 0xCB]


def test_three_words_of_the_gpu_have_four_groups() -> None:
    """Bytes of 4 * (code - zero) of groups 0 to 2, each with two bits of group 3: of the first columns, as the kernel
    reads them."""
    format = FORMATS["i6k16"]
    rows = QuantRows.zeros(format, 8, 8)
    row, c, b = 5, 2, 3
    codes = (0, 33, 63, 0b100111)  # less 32: -32, 1, 31 and 7
    for group, code in enumerate(codes):
        rows.codes[row, group, 4 * c + b] = code & 15
        rows.high[row, group, 4 * c + b] = code >> 4
    place = 16 * (4 * row + c) + b
    words = [int(tiles.pack(rows, 8, for_gpu=True)[place + 4 * word].view(np.int8)) for word in range(3)]
    assert [word >> 2 for word in words] == [-32, 1, 31]
    assert [word & 3 for word in words] == [0b11, 0b01, 0b00]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("i4g32", 1152),
        ("u4g32m", 1280),
        ("u4k32", 1184),
        ("u5k32", 1440),
        ("i6k16", 1680),
        ("i8g32", 2176),
        ("e4m3k128", 2112),
    ],
)
def test_a_super_block_is_in_the_order_of_a_warp(name: str, size: int) -> None:
    """Thread 4r + c has its codes of 4 groups in 16 bytes."""
    format = FORMATS[name]
    assert tiles.block_type(format, 8, 8).itemsize == size
    rows = QuantRows.zeros(format, 8, 8)
    row, group, c, b = 5, 6, 2, 3
    assert format.codes is not None
    rows.codes[row, group, 4 * c + b] = 0x21  # column 4c + b, and above it column 16 + 4c + b
    tape = tiles.pack(rows, 8)
    half = 1024 if format.codes.bits == 8 else 512
    assert np.flatnonzero(tape).tolist() == [half * (group // 4) + 16 * (4 * row + c) + 4 * (group % 4) + b]


def test_activations_are_integers_of_fifteen_bits() -> None:
    x = np.random.default_rng(0).normal(size=(3, 70)).astype(np.float32)
    x[1, 5] = 1000  # an outlier
    x[2, :32] = 0
    integers, scales = quantised(x)
    assert np.abs(integers).max() == LARGEST
    assert integers.shape == (3, 3, 32)
    assert not integers[:, 2, 6:].any()
    assert scales[2, 0] == 0
    assert np.abs(rounded(x) - x).max(1)[1] <= 1000 / LARGEST / 2 * 1.001
    for broken in (np.nan, np.inf):
        x[0, 40] = broken
        assert np.isnan(rounded(x)[0, 40])
        assert np.isfinite(rounded(x)[0, :32]).all()
