"""How the CUDA target divides the residual stream: in half tiles where a worker then owns less of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monolane.bench.shapes import SHAPES
from monolane.program.stage import Output
from monolane.target.cuda.generate import owned_rows
from monolane.target.cuda.opening import cuda_plan

H200 = 132  # multiprocessors


@pytest.mark.parametrize(
    ("hidden", "workers", "tile_rows", "most"),
    [
        (1536, H200, 4, 12),  # 192 tiles: some workers would own two, 16 rows
        (2048, H200, 8, 16),
        (4096, H200, 8, 32),
        (576, H200, 8, 8),
        (2048, 114, 4, 20),
        (60, 1, 4, 60),
        (64, 1, 8, 64),
    ],
)
def test_half_tiles_are_taken_where_they_help(hidden: int, workers: int, tile_rows: int, most: int) -> None:
    config = replace(SHAPES["llama-3.2-1b"], hidden=hidden, layers=2, windows=(None,) * 2, vocab=1000)
    plan = cuda_plan(config, workers)
    rows = {plan.layout.rows(stage) for stage in plan.program.projections if stage.output is Output.RESIDUAL}
    assert rows == {tile_rows}
    assert owned_rows(plan) == most
    assert plan.layout.rows(plan.program.head) == 8
