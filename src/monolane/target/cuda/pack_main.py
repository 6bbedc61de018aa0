"""A process that packs its share of the parts of tapes, for which the first process asks it (pack_processes.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import MonolaneError
from monolane.lanes.child import begin
from monolane.model.config import ModelConfig
from monolane.model.load import open_weights
from monolane.model.quantise import quantised
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.tape import KEPT_BYTES, Bytes, allocate_part, empty_tape, packing_steps
from monolane.program.tape_store import lane_sources
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.pack_processes import consecutive, plan_hash

TELL_BYTES = 64 << 20  # between two messages about the progress

Open = Callable[[dict[str, Any]], tuple[ModelConfig, Weights]]


def run(open_source: Open) -> None:
    """Pack what the first process asks for, until it closes the channel. ``open_source`` opens the weights that a
    message describes."""
    setup = begin()
    if setup is None:
        return
    channel, asked, pieces = setup
    np.empty(KEPT_BYTES, np.uint8)  # as in pack_tape
    try:
        config, weights = open_source(asked["source"])
        weights = quantised(weights, asked["source"].get("quantise"))
        plan = cuda_plan(config, asked["processors"], asked["lanes"], weights.format, asked["slot_bytes"])
        sources = lane_sources(plan, weights, config)
        channel.send({"is": "ready", "plan": plan_hash(plan)})
        while message := channel.receive():
            lane, first, last = message[0]["pack"]
            share = asked["number"], asked["count"]
            memory = pieces["memory"].array[message[0]["begin"] :]
            left = _pack(plan, sources[lane], range(first, last), memory, share, channel.send)
            channel.send({"is": "packed", "bytes": left})
    except (ConnectionError, MonolaneError):
        pass  # the first process has ended, or will meet the same error, and tell it


def _pack(
    plan: Plan,
    weights: Weights,
    stages: range,
    memory: Bytes,
    share: tuple[int, int],
    tell: Callable[[dict[str, Any]], None],
) -> int:
    """Do every ``count``-th step from ``number`` on; return the bytes that have not been told."""
    number, count = share
    part = allocate_part(empty_tape(plan), stages, consecutive(memory))
    done = 0
    for place, step in enumerate(packing_steps(part, weights)):
        if place % count != number:
            continue
        done += step()
        if done >= TELL_BYTES:
            tell({"is": "packing", "bytes": done})
            done = 0
    return done


if __name__ == "__main__":
    run(lambda source: open_weights(Path(source["path"])))
