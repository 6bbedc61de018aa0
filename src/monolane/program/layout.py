"""How rows lie inside a tape: tiles of a few rows, cut along k into k-blocks, so that a worker reads sequentially.

A tile holds a few rows over all columns. Inside it the k-blocks follow each other, and inside a k-block the rows:
[k-block][row][k]. A CPU reads one cache line (32 bf16) of each row in turn. A warp of a GPU loads a fragment at once:
one k-block of a whole tile, or two of a half tile. Rows and columns are padded with zeros to whole tiles and fragments.
That is bf16; the tiles of low-bit formats are those of ``tiles.py``, padded to whole groups of 32 columns, or to whole
fragments: super-blocks of 256 columns, or two of them in half tiles. The last super-block of a whole tile may be short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import BLOCK, GROUP, Floats, Format, QuantRows
from monolane.model.weights import Bf16Bits, from_bf16
from monolane.program import tiles
from monolane.program.stage import Output, Project


@dataclass(frozen=True)
class Layout:
    """Tiles of rows, cut along k into k-blocks."""

    name: str
    tile_rows: int
    k_block: int
    halves_residual: bool = False  # matrices that write the residual stream have tiles of half as many rows
    halves_routers: bool = False  # so have routers
    whole_blocks: bool = False  # low-bit columns are padded to whole fragments, and codes of tables are in order
    slot_bytes: int = 0  # the least that a GPU has for a chunk of a low-bit tile
    alignment: int = 1  # the bytes of a tile are a multiple of it

    def rows(self, stage: Project) -> int:
        """Rows of a tile."""
        halved = self.halves_routers if stage.routes else self.halves_residual and stage.output is Output.RESIDUAL
        return self.tile_rows // 2 if halved else self.tile_rows

    def fragment_cols(self, stage: Project) -> int:
        """Columns of a fragment: a k-block's, of a low-bit matrix a super-block's; twice as many in half tiles."""
        return (BLOCK if stage.matrix.format.is_low_bit else self.k_block) * self.tile_rows // self.rows(stage)

    def tiles(self, stage: Project) -> int:
        """Tiles of the matrix, or of each of its experts."""
        return -(-stage.matrix.rows // self.rows(stage))

    def padded_cols(self, stage: Project) -> int:
        cols, format = stage.matrix.cols, stage.matrix.format
        if format.is_low_bit and not self.whole_blocks:
            return _rounded_up(cols, GROUP)
        whole = _rounded_up(cols, self.fragment_cols(stage))
        is_whole_tile = self.rows(stage) == self.tile_rows
        # In two chunks, if not in one: then the last chunk of a tile is the same warpgroup's in every tile.
        half = -(-whole // BLOCK // 2) * self.tile_rows * format.row_bytes(BLOCK) if format.is_low_bit else 0
        is_small = _rounded_up(half, self.alignment) <= self.slot_bytes
        return _rounded_up(cols, 2 * GROUP) if is_whole_tile and is_small and _may_end_short(format) else whole

    def tile_bytes(self, stage: Project) -> int:
        return _rounded_up(self._used_bytes(stage), self.alignment)

    def _used_bytes(self, stage: Project) -> int:
        """Of a tile; zeros follow."""
        return self.rows(stage) * stage.matrix.format.row_bytes(self.padded_cols(stage))

    def pack(self, rows: Bf16Bits | QuantRows, stage: Project) -> NDArray[np.uint8]:
        """Pack consecutive rows into whole tiles. Missing rows of the last tile, and missing columns, become zeros."""
        if isinstance(rows, QuantRows):
            wide = rows.widened(self.padded_cols(stage) // GROUP)
            packed = tiles.pack(wide, self.tile_rows, self.whole_blocks, self.rows(stage) < self.tile_rows)
            packed = packed.reshape(-1, self._used_bytes(stage))
            missing = self.tile_bytes(stage) - packed.shape[1]
            return np.pad(packed, ((0, 0), (0, missing))).reshape(-1) if missing else packed.reshape(-1)
        tile_rows, padded = self.rows(stage), self.padded_cols(stage)
        count = -(-len(rows) // tile_rows)
        if len(rows) != count * tile_rows or rows.shape[1] != padded:
            full = np.zeros((count * tile_rows, padded), np.uint16)
            full[: len(rows), : rows.shape[1]] = rows
            rows = full
        blocks = rows.reshape(count, tile_rows, padded // self.k_block, self.k_block).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)

    def values(self, tape: NDArray[np.uint8], stage: Project) -> Floats:
        """The weights of whole tiles in fp32, including padding rows, without padding columns."""
        matrix = stage.matrix
        if matrix.format.is_low_bit:
            groups = self.padded_cols(stage) // GROUP
            halved = self.rows(stage) < self.tile_rows
            used = tape.reshape(-1, self.tile_bytes(stage))[:, : self._used_bytes(stage)]
            rows = tiles.unpack(used.reshape(-1), matrix.format, groups, self.tile_rows, self.whole_blocks, halved)
            return rows.values(matrix.cols)
        return from_bf16(self.unpack(tape, stage))

    def unpack(self, tape: NDArray[np.uint8], stage: Project) -> Bf16Bits:
        """The rows of whole tiles in bf16, including padding rows, without padding columns."""
        padded = self.padded_cols(stage)
        blocks = tape.view(np.uint16).reshape(-1, padded // self.k_block, self.rows(stage), self.k_block)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1, padded)[:, : stage.matrix.cols]


def _may_end_short(format: Format) -> bool:
    """Whether a GPU finds the groups of a short super-block as it finds those of a whole one: all are stored by group,
    and every word has codes of one of them (``tiles.py``)."""
    codes, scales = format.codes, format.scales
    if codes is None or scales is None or codes.is_float or scales.per_block:
        return False
    return codes.bits == 8 or codes.table is not None


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step
