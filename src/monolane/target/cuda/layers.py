"""How the kernel numbers stages and projections: every layer has the same places, so that a number follows from the
layer and the place. A layer skips a place for which it has no stage: where only some layers have experts, the others
have no router."""

from __future__ import annotations

from itertools import count

from monolane.program.plan import Plan
from monolane.program.stage import Attend, Program, Project, Stage, continues
from monolane.target import structs

Row = list[Stage | None]  # the stages of all layers at one place


def places(program: Program) -> list[Row]:
    """One row for each place of a layer, in the order of stages."""
    layers: list[list[Stage]] = [[] for _ in range(program.layers)]
    for stage in program.stages:
        if (layer := getattr(stage, "layer", None)) is not None:
            layers[layer].append(stage)
    kinds: list[tuple[object, ...]] = []  # of all places
    for stages in layers:
        following = 0  # the place behind that of the stage before
        for kind in map(_kind, stages):
            if kind not in kinds[following:]:
                kinds.insert(following, kind)
            following = kinds.index(kind, following) + 1
    by_kind = [{_kind(stage): stage for stage in stages} for stages in layers]
    return [[stages.get(kind) for stages in by_kind] for kind in kinds]


def _kind(stage: Stage) -> tuple[object, ...]:
    """The same for all stages that one piece of the kernel's code runs, but for the formats of their weights."""
    if isinstance(stage, Project):
        matrix = (stage.matrix.rows, stage.matrix.cols, stage.matrix.experts)
        return stage.name, type(stage.input), *matrix, stage.bias is None, stage.output, stage.reads, stage.writes
    assert isinstance(stage, Attend)
    return stage.name, stage.q_norm is None, stage.reads, stage.writes


def first_of(row: Row) -> Stage:
    return next(stage for stage in row if stage is not None)


def projection_rows(program: Program) -> list[list[Project | None]]:
    """The rows of projections."""
    rows = [row for row in places(program) if isinstance(first_of(row), Project)]
    return [[stage if isinstance(stage, Project) else None for stage in row] for row in rows]


def projection_count(program: Program) -> int:
    """With those that layers skip, and the head."""
    return program.layers * len(projection_rows(program)) + 1


def stage_at(program: Program, place: int) -> int:
    """The number of the stage at a place of the first layer, or of the stage that it continues."""
    return sum(not continues(first_of(row)) for row in places(program)[: place + 1])


def numbered_stages(program: Program) -> Row:
    """All stages that begin with a hand-off by their numbers; None where a layer skips one."""
    rows = [row for row in places(program) if not continues(first_of(row))]
    inside = [row[layer] for layer in range(program.layers) for row in rows]
    outside = [stage for stage in program.begun if getattr(stage, "layer", None) is None]
    return [outside[0], *inside, *outside[1:]]


def segment_table(plan: Plan) -> bytes:
    """The segments of all tapes: [worker][projection]. Those of projections that a layer skips are empty."""
    rows, numbers = projection_rows(plan.program), count()
    order = [next(numbers) if row[layer] else None for layer in range(plan.program.layers) for row in rows]
    order.append(next(numbers))  # the head
    table = [
        structs.Segment(0, 0, 0)
        if number is None
        else structs.Segment(tape[number].first_tile, tape[number].tiles, tape[number].offset)
        for tape in plan.segments
        for number in order
    ]
    return bytes((structs.Segment * len(table))(*table))
