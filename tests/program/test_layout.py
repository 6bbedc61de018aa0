"""Tiles of a GPU: columns that end within a super-block, and tiles that begin where a line of its L2 does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from low_bit import random_rows
from monolane.bench.measure.shapes import SHAPES
from monolane.model.format import FORMATS
from monolane.program.build import build_program
from monolane.program.layout import Layout
from monolane.program.stage import Matrix, Project

LAYOUT = Layout("test", tile_rows=8, k_block=32, whole_blocks=True, slot_bytes=14 << 10, alignment=128)
COLUMNS = 2880  # eleven super-blocks and two groups


def matrix(name: str, format: str, cols: int = COLUMNS) -> Project:
    config = replace(SHAPES["gpt-oss-20b"], layers=1, windows=SHAPES["gpt-oss-20b"].windows[:1])
    stage = next(stage for stage in build_program(config).projections if stage.name == name)
    return replace(stage, matrix=Matrix(name, ((name, 20),), cols, format=FORMATS[format]))


@pytest.mark.parametrize(
    ("format", "padded"),
    [
        *((name, 2880) for name in ("fp4e32", "nl4g32", "i8g32", "i8g32z")),
        *((name, 3072) for name in ("u4k32", "i4g32", "nl4k16", "i6k16", "e4m3k128")),  # a word has several groups
        ("bf16", 2880),
    ],
)
def test_the_last_super_block_is_short_where_the_format_allows_it(format: str, padded: int) -> None:
    assert LAYOUT.padded_cols(matrix("qkv", format)) == padded


@pytest.mark.parametrize("slot_bytes", [14 << 10, 6 << 10])
@pytest.mark.parametrize("format", ["fp4e32", "nl4g32", "i8g32", "i8g32z"])
def test_a_tile_that_ends_short_fits_two_slots(format: str, slot_bytes: int) -> None:
    layout = replace(LAYOUT, slot_bytes=slot_bytes)
    short = 0
    for cols in range(32, 8192, 32):
        padded = layout.padded_cols(matrix("qkv", format, cols))
        if padded % 256:
            short += 1
            units = -(-padded // 256)
            half = -(-units // 2) * 8 * FORMATS[format].row_bytes(256)
            assert -(-half // 128) * 128 <= slot_bytes, cols
    assert short


def test_a_large_tile_has_whole_super_blocks() -> None:
    assert LAYOUT.padded_cols(matrix("qkv", "i8g32", cols=4160)) == 4352


def test_a_half_tile_has_whole_pairs_of_super_blocks() -> None:
    layout = replace(LAYOUT, halves_residual=True)
    assert layout.padded_cols(matrix("down", "fp4e32")) == 3072
    assert layout.padded_cols(matrix("qkv", "fp4e32")) == COLUMNS


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "bf16"])
@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("cols", [96, 576, COLUMNS])
def test_tiles_are_whole_lines_and_packing_can_be_undone(format: str, halved: bool, cols: int) -> None:
    layout, stage = replace(LAYOUT, halves_residual=halved), matrix("down", format, cols)
    made = random_rows(FORMATS[format], 20, cols, 0.1, cols)
    tape = layout.pack(made, stage)
    assert layout.tile_bytes(stage) % LAYOUT.alignment == 0
    assert tape.nbytes == layout.tiles(stage) * layout.tile_bytes(stage)
    found = layout.values(tape, stage)
    np.testing.assert_array_equal(found[:20], made.values(cols))
    assert not found[20:].any()


def test_a_router_may_have_half_tiles_of_its_own() -> None:
    layout = replace(LAYOUT, halves_routers=True)
    assert [layout.tiles(matrix(name, "bf16")) for name in ("router", "qkv", "down")] == [5, 3, 3]
    assert layout.tiles(matrix("router", "bf16")) == replace(layout, halves_residual=True).tiles(
        matrix("router", "bf16")
    )
