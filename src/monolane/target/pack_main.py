"""A process that packs its share of the parts of tapes, for which the first process asks it (pack_processes.py)."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np

from monolane.lanes.child import begin
from monolane.lanes.memory import SharedMemory
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.tape import KEPT_BYTES, allocate_part, empty_tape, packing_steps
from monolane.target.pack_processes import consecutive, unpickled

TELL_BYTES = 64 << 20  # between two messages about the progress


def main() -> None:
    setup = begin()
    if setup is None:
        return
    channel, values, pieces = setup
    try:
        plan, sources = unpickled(pieces["job"].array.tobytes())
        np.empty(KEPT_BYTES, np.uint8)  # as in pack_tape
        channel.send({"is": "ready"})
        while asked := channel.receive():
            lane, first, last = asked[0]["pack"]
            share = values["number"], values["count"]
            left = pack(plan, sources[lane], range(first, last), pieces["memory"], share, channel.send)
            channel.send({"is": "packed", "bytes": left})
    except ConnectionError:
        pass  # the first process has ended
    except Exception as error:
        channel.send({"error": pickle.dumps(error).hex()})


def pack(
    plan: Plan,
    weights: Weights,
    stages: range,
    memory: SharedMemory,
    share: tuple[int, int],
    tell: Callable[[dict[str, object]], None],
) -> int:
    """Do every ``count``-th step from ``number`` on; return the bytes that have not been told."""
    number, count = share
    done = 0
    for place, step in enumerate(
        packing_steps(allocate_part(empty_tape(plan), stages, consecutive(memory.array)), weights)
    ):
        if place % count != number:
            continue
        done += step()
        if done >= TELL_BYTES:
            tell({"is": "packing", "bytes": done})
            done = 0
    return done


if __name__ == "__main__":
    main()
