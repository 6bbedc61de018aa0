"""Processes that pack the tapes of a large model. NumPy does it in many short operations, each of which takes the
interpreter's lock, so that threads of one process wait for each other.

A process is told in plain data what to pack: where the weights are and for how many processors and lanes. It opens the
weights and makes the plan for itself, and says by a hash that it is the same one. A part of a tape lies in memory that
all processes share, and each does its share of the steps. Where that fails, threads of this process pack the part; they
also tell what is wrong with a file. ``pack_main.py`` is what the processes run.
"""

from __future__ import annotations

import hashlib
import os
import selectors
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

from monolane.lanes.child import Child, module
from monolane.lanes.memory import SharedMemory
from monolane.model.load import opened_from
from monolane.model.quantise import QuantisedWeights
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.tape import Advance, Allocate, Bytes, Tape, pack_tape
from monolane.program.tape_store import Packing, PackingThreads, parts

LEAST_BYTES = 4 << 30  # of tapes: less is packed before processes have started
LEAST_PROCESSORS = 4
MOST_PROCESSES = 32
ANSWER_S = 300.0  # the longest that a process may say nothing: it tells of every 64 MB, and a disk may be slow
ALIGNMENT = 64  # bytes: of the tapes of workers in a part

Description = tuple[str, dict[str, Any]]  # the module that a process runs, and what it has to know of the weights
_DESCRIBED: WeakKeyDictionary[Weights, Description] = WeakKeyDictionary()


class PackProcesses:
    """Packs the parts of all lanes' tapes, with ``count`` processes. They are started for the first part: the tapes may
    have been kept. They run ``main``, a module, and open what ``source`` describes."""

    def __init__(self, plan: Plan, main: str, source: dict[str, Any], count: int) -> None:
        self._plan, self._main, self._source, self._count = plan, main, source, count
        self._part_bytes = max(_part_bytes(plan, stages) for stages in parts(plan))
        self._memory = SharedMemory.of(2 * self._part_bytes)  # one part is copied while the next is packed
        self._begin = 0  # of the current part
        self._children: list[Child] = []
        self._works = True  # so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        self._memory.close_file()

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def memory(self) -> Allocate:
        self._begin = self._part_bytes - self._begin
        return consecutive(self._memory.array[self._begin :])

    def pack(self, lane: int, part: Tape, weights: Weights, advance: Advance) -> None:
        told = 0

        def tell(size: int) -> None:
            nonlocal told
            told += size
            advance(size)

        if self._works and not self._packed([lane, part.stages.start, part.stages.stop], tell):
            self._works = False
            self._close()
        if not self._works:
            pack_tape(part, weights, _from(told, advance))

    def _packed(self, share: Sequence[int], advance: Advance) -> bool:
        """Whether the processes have packed a part: a lane, and the first projection and the end."""
        try:
            if not self._children:
                self._start()
            for child in self._children:
                child.channel.send({"pack": share, "begin": self._begin})
            with selectors.DefaultSelector() as selector:
                for child in self._children:
                    selector.register(child.channel, selectors.EVENT_READ, child)
                while selector.get_map():
                    for key, _ in _events(selector):
                        done = _answer(key.data)
                        advance(done["bytes"])
                        if done["is"] == "packed":
                            selector.unregister(key.fileobj)
        except (OSError, EOFError):
            return False
        return True

    def _start(self) -> None:
        """Returns when all processes are ready. OSError or EOFError where one does not start or makes another plan."""
        lanes = self._plan.program.lanes
        asked = {"source": self._source, "lanes": lanes, "processors": lanes * self._plan.workers, "count": self._count}
        asked["slot_bytes"] = self._plan.layout.slot_bytes
        for number in range(self._count):
            self._children.append(Child(module(self._main)))
            message = asked | {"number": number, "sizes": {"memory": self._memory.size}}
            self._children[-1].channel.send(message, [self._memory.file])
        if any(_answer(child)["plan"] != plan_hash(self._plan) for child in self._children):
            raise EOFError

    def _close(self) -> None:
        for child in self._children:
            child.channel.close()
            child.process.kill()  # it may be in the middle of a part that nobody wants any more
            child.process.wait()
        self._children = []


def _events(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    if events := selector.select(ANSWER_S):
        return events
    raise TimeoutError


def _answer(child: Child) -> dict[str, Any]:
    if not child.channel.has_message(ANSWER_S):
        raise TimeoutError
    if (received := child.channel.receive()) is None:
        raise EOFError
    return received[0]


def _from(told: int, advance: Advance) -> Advance:
    """Progress of a part that is packed again, of which so many bytes have been told."""

    def tell(size: int) -> None:
        nonlocal told
        known = min(told, size)
        told -= known
        advance(size - known)

    return tell


def can_be_opened(weights: Weights, main: str, source: dict[str, Any]) -> None:
    """Say how other processes open the same weights, where these are not of a file: they run ``main``."""
    _DESCRIBED[weights] = main, source


def described(weights: Weights) -> Description | None:
    """How other processes open the same weights; None where they cannot."""
    if isinstance(weights, QuantisedWeights):
        stored = described(weights.stored)
        return (stored[0], stored[1] | {"quantise": weights.kind}) if stored else None
    if path := opened_from(weights):
        return "monolane.target.cuda.pack_main", {"path": str(path)}
    return _DESCRIBED.get(weights)


@contextmanager
def packing_of(plan: Plan, weights: Weights) -> Iterator[Packing]:
    """Processes where they are worth their start, and threads elsewhere."""
    processors = os.cpu_count() or 1
    large = plan.resident_bytes * plan.program.lanes >= LEAST_BYTES and processors >= LEAST_PROCESSORS
    known = described(weights) if large and hasattr(os, "memfd_create") else None
    if known is None:
        yield PackingThreads()
        return
    with PackProcesses(plan, *known, min(MOST_PROCESSES, processors - 1)) as processes:
        yield processes


def plan_hash(plan: Plan) -> str:
    """Of everything that says where the bytes of a tape come from and go to."""
    program = plan.program
    content = (plan.layout, plan.segments, [stage.matrix for stage in program.projections], program.lanes)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def consecutive(memory: Bytes) -> Allocate:
    """Arrays one behind the other."""
    end = 0

    def allocate(size: int) -> Bytes:
        nonlocal end
        begin, end = end, end + -(-size // ALIGNMENT) * ALIGNMENT
        return memory[begin : begin + size]

    return allocate


def _part_bytes(plan: Plan, stages: range) -> int:
    sizes = (sum(tape[index].size for index in stages) for tape in plan.segments)
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
