"""Processes that pack the tapes of a large model. NumPy does it in many short operations, each of which takes the
interpreter's lock, so that threads of one process wait for each other: 16 of them were slower than 2.

Every process opens the model's files for itself. A part of a tape lies in memory that all of them share, and each does
its share of the steps. ``pack_main.py`` is what they run.
"""

from __future__ import annotations

import io
import os
import pickle
import selectors
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from monolane.errors import TargetError
from monolane.lanes.child import Child, module
from monolane.lanes.memory import SharedMemory
from monolane.model.config import ModelConfig
from monolane.model.load import open_weights, opened_from
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.tape import Advance, Allocate, Bytes, Tape, pack_tape
from monolane.program.tape_store import Packing, PackingThreads, lane_sources, parts

MAIN = module("monolane.target.pack_main")
LEAST_BYTES = 4 << 30  # of tapes: less is packed before processes have started
LEAST_PROCESSORS = 4
MOST_PROCESSES = 32
ALIGNMENT = 64  # bytes: of the tapes of workers in a part
EXIT_S = 3.0


class PackProcesses:
    """Packs the parts of all lanes' tapes, with ``count`` processes. They are started for the first part: the tapes may
    have been kept. Where they do not start, or where other processes cannot make the weights, threads pack."""

    def __init__(self, plan: Plan, weights: Weights, config: ModelConfig, count: int) -> None:
        self._plan, self._count = plan, count
        self._sources = lane_sources(plan, weights, config)
        self._memory = SharedMemory.of(max(_part_bytes(plan, stages) for stages in parts(plan)))
        self._processes: list[_Process] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        _close(self._processes or [])
        self._memory.close_file()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes or []]

    def memory(self) -> Allocate:
        return consecutive(self._memory.array)

    def pack(self, lane: int, part: Tape, weights: Weights, advance: Advance) -> None:
        if self._processes is None:
            self._processes = self._started()
        if not self._processes:
            pack_tape(part, weights, advance)
            return
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                with suppress(ConnectionError):  # it is dead: that is told when its answer is waited for
                    process.channel.send({"pack": [lane, part.stages.start, part.stages.stop]})
                selector.register(process.channel, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select():
                    done = key.data.answer()
                    advance(done["bytes"])
                    if done["is"] == "packed":
                        selector.unregister(key.fileobj)

    def _started(self) -> list[_Process]:
        """The processes when all of them are ready, or none."""
        try:
            job = pickled(self._plan, self._sources)
        except (pickle.PicklingError, TypeError, AttributeError):
            return []
        shared_job = SharedMemory.of(len(job))
        shared_job.array[:] = bytearray(job)
        processes: list[_Process] = []
        try:
            for number in range(self._count):
                processes.append(_Process(number, self._count, shared_job, self._memory))
            for process in processes:
                process.answer()
        except BaseException as error:
            _close(processes)
            if not isinstance(error, Exception):
                raise
            return []
        finally:
            shared_job.close_file()
        return processes


def _close(processes: list[_Process]) -> None:
    for process in processes:
        process.close()


class _Process:
    def __init__(self, number: int, count: int, job: SharedMemory, memory: SharedMemory) -> None:
        self._child = Child(MAIN)
        self.channel = self._child.channel
        sizes = {"job": job.size, "memory": memory.size}
        self.channel.send({"number": number, "count": count, "sizes": sizes}, [job.file, memory.file])

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def answer(self) -> dict[str, Any]:
        """What the process says; the error that it has met is raised here."""
        received = self.channel.receive()
        if received is None:
            end = self._child.end(EXIT_S) or "does not answer"
            raise TargetError(f"A process that packs the weights {end}.", "Load the model again.")
        if "error" in received[0]:
            error: BaseException = pickle.loads(bytes.fromhex(received[0]["error"]))
            raise error
        return received[0]

    def close(self) -> None:
        self.channel.close()
        self._child.process.kill()  # it may be in the middle of a part that nobody wants any more
        self._child.process.wait()


@contextmanager
def packing_of(plan: Plan, weights: Weights, config: ModelConfig) -> Iterator[Packing]:
    """Processes where they are worth their start, and threads elsewhere."""
    processors = os.cpu_count() or 1
    large = plan.resident_bytes * plan.program.lanes >= LEAST_BYTES
    if not large or processors < LEAST_PROCESSORS or not hasattr(os, "memfd_create"):
        yield PackingThreads()
        return
    with PackProcesses(plan, weights, config, min(MOST_PROCESSES, processors - 1)) as processes:
        yield processes


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


class _Pickler(pickle.Pickler):
    """Of weights of files it keeps where these are."""

    def persistent_id(self, thing: object) -> str | None:
        path = opened_from(thing)
        return str(path) if path else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, path: str) -> Weights:
        return open_weights(Path(path))


def pickled(plan: Plan, sources: list[Weights]) -> bytes:
    written = io.BytesIO()
    _Pickler(written).dump((plan, sources))
    return written.getvalue()


def unpickled(job: bytes) -> tuple[Plan, list[Weights]]:
    plan, sources = _Unpickler(io.BytesIO(job)).load()
    return plan, sources
