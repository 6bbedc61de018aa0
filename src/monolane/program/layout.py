"""How rows lie inside a tape: tiles of a few rows, cut along k into blocks, so that a worker reads one straight stream.

A tile holds ``tile_rows`` rows over all columns. Inside it the blocks follow each other along k, and inside a block the
rows: [block][row][k]. A CPU reads one cache line (32 bf16) of each row in turn; a tensor core will ask for its
fragments instead. Rows and columns are padded with zeros to whole tiles and blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.model.weights import Bf16Bits
from monolane.program.stage import Matrix


@dataclass(frozen=True)
class Layout:
    """Tiles of rows, blocks of k."""

    name: str
    tile_rows: int
    block: int

    def tiles(self, matrix: Matrix) -> int:
        return -(-matrix.rows // self.tile_rows)

    def padded_cols(self, matrix: Matrix) -> int:
        return -(-matrix.cols // self.block) * self.block

    def tile_bytes(self, matrix: Matrix) -> int:
        return self.tile_rows * self.padded_cols(matrix) * matrix.format.bits // 8

    def pack(self, rows: Bf16Bits, matrix: Matrix) -> NDArray[np.uint8]:
        """Whole tiles from consecutive rows; the last tile may be short of rows."""
        tiles = -(-len(rows) // self.tile_rows)
        padded = self.padded_cols(matrix)
        if len(rows) != tiles * self.tile_rows or rows.shape[1] != padded:
            full = np.zeros((tiles * self.tile_rows, padded), np.uint16)
            full[: len(rows), : rows.shape[1]] = rows
            rows = full
        blocks = rows.reshape(tiles, self.tile_rows, padded // self.block, self.block).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)

    def unpack(self, tape: NDArray[np.uint8], matrix: Matrix) -> Bf16Bits:
        """The rows of whole tiles, with their padding of rows but not of columns."""
        padded = self.padded_cols(matrix)
        blocks = tape.view(np.uint16).reshape(-1, padded // self.block, self.tile_rows, self.block)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1, padded)[:, : matrix.cols]

    def row(self, tape: NDArray[np.uint8], matrix: Matrix, row: int) -> Bf16Bits:
        """One row of a tile: an embedding looked up where the head's matrix lies."""
        blocks = tape.view(np.uint16).reshape(-1, self.tile_rows, self.block)
        return np.ascontiguousarray(blocks[:, row % self.tile_rows]).reshape(-1)[: matrix.cols]
