"""How the CUDA target divides work: the residual stream in half tiles where a worker then owns less of it, and tiles in
one chunk, or in the same number of chunks for every warpgroup. And how much of it is copied at a time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.bench.measure.shapes import SHAPES
from monolane.bench.measure.subject import find_model
from monolane.program.stage import Output
from monolane.progress import Silent
from monolane.target.cuda.constants import PAGE_TOKENS, WARPGROUPS
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.projections import SLOT_FRAGMENTS, cut, projection_types
from monolane.target.cuda.shared_memory import owned_rows
from monolane.target.cuda.stream_owners import at_once_pages

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


@settings(deadline=None)
@given(st.integers(1, 4000), st.sampled_from(SLOT_FRAGMENTS))
def test_a_tile_is_cut_into_chunks_that_groups_have_alike(units: int, slot: int) -> None:
    found = cut(units, slot)
    assert found is not None
    chunks, size = found
    assert chunks == 1 or chunks % WARPGROUPS == 0
    assert size <= slot
    assert (chunks - 1) * size < units <= chunks * size  # none is empty, and together they are all of it


@pytest.mark.parametrize(("units", "slot"), [(25, 6), (9, 4), (3, 1)])
def test_a_tile_that_cannot_be_cut_so_is_not_cut(units: int, slot: int) -> None:
    """As many chunks as an even number of warpgroups could take would leave one of them empty."""
    assert cut(units, slot) is None


@pytest.mark.parametrize(
    ("units", "slot", "chunks", "size"),
    [
        (64, 32, 2, 32),  # 2,048 columns
        (48, 24, 2, 24),  # 1,536
        (24, 24, 1, 24),  # 1,536 in half tiles
        (140, 24, 6, 24),  # 8,960 in half tiles
        (282, 32, 10, 29),  # ten of 32 would leave the last one empty
    ],
)
def test_how_tiles_of_real_models_are_cut(units: int, slot: int, chunks: int, size: int) -> None:
    assert cut(units, slot) == (chunks, size)


@pytest.mark.parametrize(("shape", "mixture"), [("gpt-oss-120b:1", "mxfp4+q8"), ("llama-3.1-8b:2", "q8_0")])
def test_two_chunks_of_8_bit_weights_are_in_flight_while_an_input_comes(shape: str, mixture: str) -> None:
    _, model = find_model(None, shape, Silent(), mixture)
    text = "\n".join(projection_types(cuda_plan(model.config, H200, 1, model.weights.format)))
    types = text.split("struct Projection<")[1:]
    first = [int(n) for one in types if "I8g32" in one for n in re.findall(r"kInFlight = \{\d+, (\d+)", one)]
    assert len(first) > 1
    assert min(first) >= WARPGROUPS


@pytest.mark.parametrize(
    ("shape", "owners", "tokens"),
    [("laneformer-135m", 9, 448), ("laneformer-2b", 0, 0), ("smollm2-135m", 0, 0)],
)
def test_owners_of_the_residual_stream_attend_in_lanes_of_small_models(shape: str, owners: int, tokens: int) -> None:
    config = SHAPES[shape]
    plan = cuda_plan(config, H200, config.lanes.count if config.lanes else 1)
    assert plan.stream_owners == owners
    if owners:
        assert at_once_pages(plan) * PAGE_TOKENS == tokens
        residual = [tape[1].tiles for tape in plan.segments]
        assert residual == [8] * owners + [0] * (plan.workers - owners)  # a tile of o for each of eight warps


def test_lanes_with_too_few_workers_have_no_owners() -> None:
    """Four of 13 workers would have more tiles of gate_up than fit their registers."""
    assert cuda_plan(SHAPES["laneformer-135m"], 7 * 13, 7).stream_owners == 0
