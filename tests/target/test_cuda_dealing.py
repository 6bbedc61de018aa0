"""Gates of experts are dealt out to the workers of a decode pass, whichever experts are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monolane.bench.measure.mixtures import made_up, published
from monolane.bench.measure.shapes import SHAPES
from monolane.program.plan import Plan
from monolane.target.cuda.dealing import DealtTile, dealt_tiles, is_dealt, most_dealt
from monolane.target.cuda.opening import cuda_plan

WORKERS = 132


def plan_of(name: str, workers: int, lanes: int = 1) -> Plan:
    config = replace(SHAPES[name], layers=2, windows=SHAPES[name].windows[:2], vocab=1000)
    return cuda_plan(config, workers, lanes, made_up(config, published(config)).format)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-120b"])
@pytest.mark.parametrize("workers", [1, 5, WORKERS])
def test_every_tile_of_every_chosen_expert_is_dealt_once_and_evenly(name: str, workers: int) -> None:
    plan = plan_of(name, workers)
    most = most_dealt(plan)
    table = (DealtTile * (plan.program.layers * workers * most)).from_buffer_copy(dealt_tiles(plan))
    gates = [number for number, stage in enumerate(plan.program.projections) if is_dealt(stage)]
    assert len(gates) == plan.program.layers
    for layer, number in enumerate(gates):
        stage = plan.program.projections[number]
        each, size = plan.layout.tiles(stage), plan.layout.tile_bytes(stage)
        expert = 3
        dealt: list[tuple[int, int]] = []  # the worker and the byte on its tape, of the same expert at every place
        for worker in range(workers):
            first, end = (stage.chosen * each * at // workers for at in (worker, worker + 1))
            assert most - 1 <= end - first <= most
            rows = table[(layer * workers + worker) * most :][: end - first]
            dealt += [(row.worker, row.offset + expert * row.tiles * size) for row in rows]
        expected = []
        for tile in range(each):
            owner = next(w for w, _, _ in plan.owners(number, tile, tile + 1))
            segment = plan.segments[owner][number]
            expected.append((owner, segment.offset + (expert * segment.tiles + tile - segment.first_tile) * size))
        assert dealt == stage.chosen * expected


def test_a_model_without_experts_is_dealt_nothing() -> None:
    assert most_dealt(plan_of("llama-3.2-1b", WORKERS)) == 0
