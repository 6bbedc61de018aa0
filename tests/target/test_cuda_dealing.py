"""Gates of experts are dealt out to the workers of a decode pass, whichever experts are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monolane.bench.measure.mixtures import made_up, published
from monolane.bench.measure.shapes import SHAPES
from monolane.program.plan import Plan
from monolane.target.cuda.dealing import DealtTile, dealt_counts, dealt_firsts, dealt_tiles, is_dealt, most_dealt
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
        counts = dealt_counts(plan)
        assert max(counts) == most == -(-stage.chosen * each // workers)
        for worker, count in enumerate(counts):
            rows = table[(layer * workers + worker) * most :][:count]
            dealt += [(row.worker, row.offset + expert * row.tiles * size) for row in rows]
        expected = []
        for tile in range(each):
            owner = next(w for w, _, _ in plan.owners(number, tile, tile + 1))
            segment = plan.segments[owner][number]
            expected.append((owner, segment.offset + (expert * segment.tiles + tile - segment.first_tile) * size))
        assert dealt == stage.chosen * expected
        assert dealt_firsts(plan) == [sum(counts[:worker]) for worker in range(workers + 1)]


@pytest.mark.parametrize(("name", "late"), [("qwen3-30b-a3b", 1), ("gpt-oss-120b", 3)])
def test_workers_with_rows_of_the_router_are_dealt_fewer_tiles(name: str, late: int) -> None:
    """As many fewer as take as long as those rows, before others are dealt fewer."""
    plan = plan_of(name, WORKERS)
    number = next(number for number, stage in enumerate(plan.program.projections) if stage.routes)
    routers = [worker for worker, tape in enumerate(plan.segments) if tape[number].tiles]
    assert len(routers) == 32
    counts = dealt_counts(plan)
    missing = WORKERS * max(counts) - sum(counts)
    assert sum(max(counts) - counts[worker] for worker in routers) == min(missing, late * 32)
    assert missing


def test_gates_of_other_formats_in_some_layers_are_dealt_alike() -> None:
    config = replace(SHAPES["qwen3-30b-a3b"], layers=2, windows=SHAPES["qwen3-30b-a3b"].windows[:2], vocab=1000)
    first, others = (made_up(config, mixture).format for mixture in ("q8_0", "q4_k_m"))
    plan = cuda_plan(config, WORKERS, 1, lambda name: (first if name.startswith("layers.0") else others)(name))
    gates = [stage for stage in plan.program.projections if is_dealt(stage)]
    assert len({stage.matrix.format for stage in gates}) == 2
    assert dealt_firsts(plan)[-1] == gates[0].chosen * plan.layout.tiles(gates[0])


def test_a_model_without_experts_is_dealt_nothing() -> None:
    assert most_dealt(plan_of("llama-3.2-1b", WORKERS)) == 0
