"""What the CUDA kernel must report when a worker stalls at a stage. The worker whose deadline passes first reports its
own place: that is the stalled worker, or one that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monolane.program.plan import Plan
from monolane.program.stage import Attend, Program, Project
from monolane.target.cuda.projections import is_small

# Long beside what a stage of the emulation takes on a busy machine with two cores: a slow worker is not a stuck one.
DEADLINE_S, STALL_S = 2.0, 3
WAITS = COPY, ACTIVATIONS, BARRIER, TOKEN = "a copy of weights", "activations", "the barrier", "the chosen token"


@dataclass(frozen=True)
class Report:
    stage: str
    layer: int
    waited_for: str


def stage_index(program: Program, name: str) -> int:
    """The last stage of this name: that of the last layer."""
    return max(i for i, stage in enumerate(program.stages) if stage.name == name)


def expected_reports(plan: Plan, stalled: int, at: int, reporter: int, prefill: bool) -> set[Report]:
    """Of worker ``reporter``, when worker ``stalled`` stalls at stage ``at`` of the first pass that has this stage.
    There is one; on the way past an attend stage, which needs the rows of one head only, there are two."""
    if reporter == stalled:
        return {_report(plan, at, BARRIER if prefill else _last_wait(plan, stalled, at))}
    if prefill and at < len(plan.program.stages) - 1:
        return {_report(plan, at, BARRIER)}  # a prefill pass has a barrier at the end of every stage but the last
    return set(_waits(plan, reporter, at))


def _last_wait(plan: Plan, worker: int, before: int) -> str:
    """What a worker of a decode pass waited for before a stage: a small projection waits for its input last."""
    own = [
        stage
        for number, stage in enumerate(plan.program.projections)
        if plan.segments[worker][number].tiles and plan.program.stages.index(stage) < before
    ]
    return ACTIVATIONS if is_small(plan, own[-1]) else COPY


def _waits(plan: Plan, worker: int, after: int) -> Iterator[Report]:
    """Where a worker of a decode pass comes to wait: at the next stage that it has a part in."""
    count = len(plan.program.stages)
    for index in (*range(after + 1, count), *range(2, count)):  # the first projection of a pass waits for nobody
        stage = plan.program.stages[index]
        if isinstance(stage, Attend):
            if worker < plan.program.attention.kv_heads:
                yield _report(plan, index, COPY)  # as before: this stage does not note what it waits for
        elif not isinstance(stage, Project):
            return (yield _report(plan, index, TOKEN))
        elif plan.segments[worker][plan.program.projections.index(stage)].tiles:
            return (yield _report(plan, index, ACTIVATIONS))


def _report(plan: Plan, index: int, waited_for: str) -> Report:
    stage = plan.program.stages[index]
    layer = getattr(stage, "layer", None)
    return Report(stage.name, plan.program.layers - 1 if layer is None else layer, waited_for)
