"""What a token should take on a GPU: a walk along one worker's tape, chunk by chunk, with two clocks.

Memory fills the ring as long as a slot is free. The consumers may begin a stage one hand-off after the stage before
has ended; then they empty the ring, much faster than it fills, until they have caught up. So a hand-off costs its whole
length where the ring is full, and only what it takes from memory where there is room for what comes in meanwhile.

It is what the design allows, not what a kernel reaches: every worker has an even share of every stage, and attention
over a short context costs no more than its hand-off. A trace beside it shows what is lost.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from monolane.program.plan import Plan
from monolane.program.stage import Embed, Project, Stage
from monolane.target.cuda.constants import FRAGMENT_BYTES
from monolane.target.cuda.projections import slot_fragments

# Measured on an H200.
CEILING = 4.60e12  # bytes per second that all workers together read
HANDOFF_US = 1.6  # where no weights are streamed
PAUSE_US = 0.6  # of it, that memory loses even so: the best a probe of the same mechanics has reached
CATCH_UP = 8.0  # times as fast as memory fills the ring, the tensor cores empty it
MICRO = 1e6


def stage_bytes(plan: Plan, stage: Stage) -> int:
    """Weights that all workers together stream for a stage."""
    return plan.layout.tiles(stage) * plan.layout.tile_bytes(stage) if isinstance(stage, Project) else 0


def stream_us(size: float) -> float:
    """The time of so many bytes at the ceiling."""
    return size / CEILING * MICRO


def predicted_us(plan: Plan, slots: int) -> list[float]:
    """What each stage adds to the time of a token whose context is short, in µs."""
    stages = plan.program.stages
    filled = taken = 0.0  # when memory has filled a slot, when the consumers have taken what was in it
    freed = deque([0.0] * slots, slots)  # when the slots were freed: the oldest is filled next
    ends = []
    for stage in (*stages, *stages):  # the first token begins with an empty ring, the second as all others do
        if not isinstance(stage, Embed):  # every worker looks the token up for itself
            taken += HANDOFF_US
            filled += PAUSE_US
        for chunk in _chunks(plan, stage):
            fill_us = stream_us(chunk * plan.workers)
            filled = max(filled, freed[0]) + fill_us
            taken = max(filled, taken + fill_us / CATCH_UP)
            freed.append(taken)
        ends.append(taken)
    return [end - before for before, end in pairwise(ends[len(stages) - 1 :])]


def _chunks(plan: Plan, stage: Stage) -> list[float]:
    """A worker's even share of a stage, in bytes: a tile's chunks are as equal as they can be, and fit a slot."""
    if not isinstance(stage, Project):
        return []
    tile = plan.layout.tile_bytes(stage)
    chunk = tile / -(-tile // (slot_fragments(plan) * FRAGMENT_BYTES))
    share = stage_bytes(plan, stage) / plan.workers
    whole, rest = divmod(share, chunk)
    return [chunk] * int(whole) + ([rest] if rest else [])
