"""Predicts the time of a token on a GPU: it goes along one worker's tape, chunk by chunk, with two clocks.

Memory fills the ring as long as a slot is free. The consumers begin a stage one hand-off after the stage before has
ended; then they empty the ring, much faster than memory fills it, until it is empty. So a hand-off costs its whole
length where the ring is full, and only the time that memory loses where the ring still has free slots.

The prediction is what the design allows, not what a kernel reaches: every worker has an even share of every stage, and
attention over a short context costs no more than its hand-off. A trace shows how much more a kernel takes.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from monolane.program.plan import Plan
from monolane.program.stage import Attend, Embed, Project, Stage, continues
from monolane.target.cuda.projections import slot_bytes

# Measured on an H200.
CEILING = 4.60e12  # bytes per second that all workers together read
HANDOFF_US = 1.6  # of a hand-off while no weights are streamed
STREAM_OWNERS_HANDOFF_US = 1.0  # where no worker has a part of two stages in a row (stream_owners.py)
PAUSE_US = 0.6  # that memory loses at a hand-off even if the ring has room: the least that a probe has reached
CATCH_UP = 8.0  # how many times faster the consumers empty the ring than memory fills it
MICRO = 1e6


def stage_bytes(plan: Plan, stage: Stage) -> int:
    """Bytes of weights that all workers of all lanes together stream for a stage: of experts, those of the chosen."""
    if not isinstance(stage, Project):
        return 0
    return plan.program.lanes * stage.chosen * plan.layout.tiles(stage) * plan.layout.tile_bytes(stage)


def stream_us(size: float) -> float:
    """µs to read ``size`` bytes at the ceiling."""
    return size / CEILING * MICRO


def predicted_us(plan: Plan, slots: int) -> list[float]:
    """What each stage adds to the time of a token with a short context, in µs."""
    stages, workers = plan.program.stages, plan.workers * plan.program.lanes
    filled = taken = 0.0  # the two clocks: when memory has filled a slot, when the consumers have emptied it
    freed = deque([0.0] * slots, slots)  # when the slots were freed: the oldest is filled next
    ends = []
    for stage in (*stages, *stages):  # two tokens: only the second begins with the ring of the token before
        if _has_handoff(plan, stage):
            taken += handoff_us(plan)
            filled += PAUSE_US
        for chunk in _chunks(plan, stage):
            fill_us = stream_us(chunk * workers)
            filled = max(filled, freed[0]) + fill_us
            taken = max(filled, taken + fill_us / CATCH_UP)
            freed.append(taken)
        ends.append(taken)
    return [end - before for before, end in pairwise(ends[len(stages) - 1 :])]


def handoff_us(plan: Plan) -> float:
    """µs of a hand-off of this plan while no weights are streamed."""
    return STREAM_OWNERS_HANDOFF_US if plan.stream_owners else HANDOFF_US


def _has_handoff(plan: Plan, stage: Stage) -> bool:
    """Every worker looks up the token itself; and where the owners of the residual stream attend, they go on with o."""
    at_once = isinstance(stage, Attend) and plan.stream_owners > 0
    return not isinstance(stage, Embed) and not continues(stage) and not at_once


def _chunks(plan: Plan, stage: Stage) -> list[float]:
    """The sizes of the chunks of a worker's even share of a stage, in bytes. The chunks of a tile are equal."""
    if not isinstance(stage, Project):
        return []
    tile = plan.layout.tile_bytes(stage)
    chunk = tile / -(-tile // (slot_bytes(plan)))
    share = stage_bytes(plan, stage) / (plan.workers * plan.program.lanes)
    whole, rest = divmod(share, chunk)
    return [chunk] * int(whole) + ([rest] if rest else [])
