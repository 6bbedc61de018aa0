"""A lane of the CPU target in a process of its own."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import EngineFailedError
from monolane.lanes.memory import SharedAllocator, SharedMemory
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cpu import native
from monolane.target.cpu.runtime import DEADLINE_S, POLL_MS, Cache, CacheShape
from monolane.target.lane_processes import Answer, LaneSetup


def lane_setups(
    library: native.Library,
    tapes: Sequence[Tape],
    memory: SharedAllocator,
    shared: SharedMemory,
    places: Sequence[native.Place],
    context: int,
    caches: int,
    deadline_s: float = DEADLINE_S,
) -> list[LaneSetup]:
    """For the processes of all lanes but the first. The tapes are in ``memory``; lanes exchange in ``shared``."""
    plan, table = tapes[0].plan, tapes[0].table
    segments = memory.copy_of(np.frombuffer(bytes(structs.segment_table(plan)), np.uint8))
    cache = dataclasses.asdict(CacheShape.of(plan.program, context, 1))
    setups = []
    for lane in range(1, len(tapes)):
        tape, place = tapes[lane], places[lane]
        pieces = {"shared": shared, "segments": segments, "constants": memory.copy_of(tape.constants.values)}
        if table is not None:
            pieces["table"] = memory.memory_of(table)
        pieces |= {f"tape {worker}": memory.memory_of(part) for worker, part in enumerate(tape.workers)}
        values = {
            "library": str(library.path), "threads": place.threads, "processors": list(place.processors or ()),
            "context": context, "cache": cache, "caches": caches, "deadline_s": deadline_s,
        }  # fmt: skip
        setups.append(LaneSetup("cpu", lane, values, pieces))
    return setups


class CpuFollower:
    """The kernel of one lane, as ``Follower`` of lane_main.py."""

    def __init__(self, values: dict[str, Any], pieces: Mapping[str, SharedMemory]) -> None:
        self._memory = pieces
        segments = pieces["segments"]
        table = pieces["table"].array if "table" in pieces else None
        parts = [piece.array for name, piece in pieces.items() if name.startswith("tape ")]
        place = native.Place(values["threads"], values["processors"], values["lane"], pieces["shared"].address)
        self._setup = native.make_setup(
            [native.LaneMemory(parts, pieces["constants"].array.view(np.float32))],
            (structs.Segment * (segments.size // ctypes.sizeof(structs.Segment))).from_buffer_copy(
                segments.array.tobytes()
            ),
            table,
            values["context"],
            place,
            values["deadline_s"],
        )
        self._caches = [Cache(CacheShape(**values["cache"])) for _ in range(values["caches"])]
        self._library = native.Library(Path(values["library"]))
        self._engine = self._library.open(self._setup)
        self._request: native.Arguments | None = None

    def ready(self) -> Answer:
        return {}, []

    def meet(self, answer: Answer) -> None:
        """All lanes have the same shared memory from the start."""

    def start(self, request: Request, all_logits: bool, number: int) -> None:
        # Lane 0 alone writes logits; here they only say that nothing is sampled.
        self._request = native.make_request(request, np.empty(1, np.float32) if all_logits else None)
        cache = self._caches[request.cache].struct
        if not self._library.start(self._engine, self._request, cache, native.NO_TRACE):
            raise EngineFailedError("The lane has not ended its last request.")

    def finish(self, stuck: Callable[[dict[str, int]], None]) -> None:
        while (status := self._library.status(self._engine)) == structs.Status.RUNNING:
            self._library.wait(self._engine, sys.maxsize, POLL_MS)
        if status == structs.Status.STUCK:
            threading.Event().wait()  # lane 0 has reported it, and asks for nothing more; it ends this process

    def give(self, logits: SharedMemory) -> None:
        """Lane 0 has all logits."""

    def stamp(self, kernel: bytes, stages: int, first: int, passes: int, waits: SharedMemory) -> None:
        raise NotImplementedError("lanes on a CPU do not measure their waits")

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self._caches[destination].take(self._caches[source], tokens)

    def leave(self) -> None:
        """Threads end with their process."""
