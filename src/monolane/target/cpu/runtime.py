"""The CPU target: a compiled kernel on pinned threads. The host starts a request and reads tokens while it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.program.stage import Program, continues
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Finish, Request, Token
from monolane.target.cpu import native
from monolane.target.cpu.memory import allocate
from monolane.target.lane_processes import LaneProcesses

# A worker without a beat for this long is stuck. On Linux a worker that only lacks processor time is told apart
# (csrc/pulse.hpp); elsewhere it cannot be, so the deadline is longer.
DEADLINE_S = 0.5 if sys.platform == "linux" else 10.0
NAMED_S = 0.3  # that the engine's watchdog waits longer: the error of the workers comes first, and names the stuck one
POLL_MS = 100  # the longest call that waits for tokens, so that Ctrl-C takes effect
_abandoned: list[object] = []  # memory that is never freed, because a stuck worker may still use it


class CpuTarget:
    """A compiled kernel with the tapes of its lanes and ``caches`` KV caches. ``others`` are lanes that run in other
    processes; then ``tapes`` has those of this process."""

    def __init__(
        self,
        library: native.Library,
        tapes: Sequence[Tape],
        context: int,
        place: native.Place,
        description: str,
        deadline_s: float = DEADLINE_S,
        caches: int = 1,
        others: LaneProcesses | None = None,
        shared: object = None,
        memory_bytes: int = 0,
    ) -> None:
        self.name = description
        self.context = context
        self.caches = caches
        self.memory_bytes = memory_bytes
        self.stall_s = deadline_s + NAMED_S
        plan = tapes[0].plan
        self.bytes_per_token = plan.bytes_per_token * plan.program.lanes
        self.program = plan.program
        self.lane_workers = plan.workers
        self._workers = plan.workers * len(tapes)
        self._library = library
        self._tapes = tapes
        self._others = others
        self._shared = shared  # the memory that lanes in other processes share; kept alive
        self._caches = [Cache(CacheShape.of(self.program, context, len(tapes))) for _ in range(caches)]
        lanes = [native.LaneMemory.of(tape) for tape in tapes]
        segments = structs.segment_table(plan)
        self._setup = native.make_setup(lanes, segments, tapes[0].table, context, place, deadline_s)
        self._engine: int | None = library.open(self._setup)
        self._users = 0  # calls into the engine that have not returned
        self._idle = threading.Condition()

    def run(self, request: Request) -> CpuRun:
        return CpuRun(self, request)

    def copy(self, source: int, destination: int, tokens: int) -> None:
        if self._others:
            self._others.copy(source, destination, tokens)
        self._caches[destination].take(self._caches[source], tokens)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = np.empty((len(tokens), self.program.vocab), np.float32)
        for _ in CpuRun(self, Request(tokens, 0, 0, frozenset(), Sampling()), logits):
            pass
        return logits

    def trace(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """Run a request with time stamps, in ns: when each worker came to each stage, had its input, ended its share.
        [pass][worker][stage][3], from decode pass ``first`` on. Stages that continue another one are part of it."""
        stamps = np.zeros((passes, self._workers, len(self.program.stages), 3), np.int64)
        run = CpuRun(self, request, trace=native.make_trace(stamps, first))
        try:
            for _ in run:
                pass
        except BaseException:  # the workers may still write stamps
            _abandoned.append(stamps)
            run.abort()
            raise
        # A worker comes to a stage when it has ended its share of the stage before; then it waits for the others.
        in_order = stamps.transpose(1, 0, 2, 3).reshape(self._workers, -1, 3)
        began = np.concatenate([in_order[:, :1, 1], in_order[:, :-1, 2]], 1)
        stamps[..., 0] = began.reshape(self._workers, passes, -1).transpose(1, 0, 2)
        firsts = [index for index, stage in enumerate(self.program.stages) if not continues(stage)]
        lasts = [index - 1 for index in (*firsts[1:], len(self.program.stages))]
        return np.stack([stamps[:, :, firsts, 0], stamps[:, :, firsts, 1], stamps[:, :, lasts, 2]], -1)

    def close(self) -> None:
        with self._idle:
            engine, self._engine = self._engine, None
            self._idle.wait_for(lambda: self._users == 0)
        if self._others:
            self._others.close()
        if engine is not None and not self._library.close(engine):
            _abandoned.extend([self._setup, self._caches])

    @property
    def others(self) -> LaneProcesses | None:
        return self._others

    def cache(self, index: int) -> native.Cache:
        """The addresses of one KV cache."""
        return self._caches[index].struct

    @contextmanager
    def engine(self) -> Iterator[tuple[native.Library, int]]:
        """The library and the engine for one call; the engine is not freed during the call."""
        with self._idle:
            if self._engine is None:
                raise TargetError("This target is closed.", "Load the model again.")
            engine = self._engine
            self._users += 1
        try:
            yield self._library, engine
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self.close()


class CpuRun:
    """A request on the workers."""

    def __init__(
        self,
        target: CpuTarget,
        request: Request,
        logits: NDArray[np.float32] | None = None,
        trace: native.Arguments = native.NO_TRACE,
    ) -> None:
        self._target = target
        self._arguments = native.make_request(request, logits)  # kept: the kernel reads this memory
        self._logprobs = request.logprobs is not None
        self.finish: Finish | None = None
        with target.engine() as (library, engine):
            if target.others and library.status(engine) not in (structs.Status.STUCK, structs.Status.RUNNING):
                target.others.start(request, logits is not None)
            self._number = library.start(engine, self._arguments, target.cache(request.cache), trace)
            if not self._number:
                raise TargetError("A request is still running, or an earlier one got stuck.", "Wait, or load again.")
            self.start_ns = library.start_ns(engine)

    def __iter__(self) -> Iterator[list[Token]]:
        seen = 0
        while self.finish is None:
            with self._target.engine() as (library, engine):
                made = library.wait(engine, seen, POLL_MS)
                status = library.status(engine)
                if status != structs.Status.RUNNING:
                    made = library.wait(engine, made, 0)  # includes tokens that came between the two calls
                tokens = [structs.token_of(entry, self._logprobs) for entry in library.entries(engine, seen, made)]
            if tokens:
                yield tokens
            seen = made
            if status != structs.Status.RUNNING:
                self.finish = self._finish(status)

    @property
    def steps(self) -> int:
        with self._target.engine() as (library, engine):
            return library.steps(engine)

    def abort(self) -> None:
        if self.finish is None:
            with suppress(TargetError), self._target.engine() as (library, engine):  # closed: the run has ended
                library.abort(engine, self._number)

    def _finish(self, status: int) -> Finish:
        if status == structs.Status.STUCK:
            with self._target.engine() as (library, engine):
                worker, missing, stage = library.stall(engine)
            lane = missing // self._target.lane_workers
            if self._target.others and (problem := self._target.others.problem(lane)):
                raise TargetError(f"{problem}.", "Load the model again.")
            where = self._target.program.stages[stage]
            layer = getattr(where, "layer", None)
            if worker == missing:
                raise TargetError(
                    f"{self._name(worker)} got stuck at stage {where.name!r}: its counters were overwritten.",
                    "Load the model again.",
                )
            raise TargetError(
                f"{self._name(missing)} got stuck: {self._name(worker).lower()} waited for it at stage {where.name!r}"
                + (f" of layer {layer}." if layer is not None else "."),
                "Load the model again; use fewer workers if the machine is very busy.",
            )
        if status == structs.Status.NOT_A_NUMBER:
            raise TargetError("The model produced logits that are not numbers.", "Its weights are probably damaged.")
        return structs.FINISHES[structs.Status(status)]

    def _name(self, worker: int) -> str:
        lane, rank = divmod(worker, self._target.lane_workers)
        return f"Worker {rank} of lane {lane}" if self._target.program.lanes > 1 else f"Worker {worker}"


@dataclass(frozen=True)
class CacheShape:
    """The sizes of a KV cache, of all lanes of a process."""

    heads: int  # KV heads of all layers and lanes
    split: int  # positions; those of a split are contiguous
    splits: int
    key_bytes: int
    value_bytes: int

    @classmethod
    def of(cls, program: Program, context: int, lanes: int) -> CacheShape:
        """Whole splits of positions; the values of a position are padded to whole vectors."""
        shape = program.attention
        heads = lanes * program.layers * shape.kv_heads
        positions = heads * shape.splits(context) * shape.split
        element = 2 if shape.cache_format == "bf16" else 4
        padded = -(-shape.head_dim // 16) * 16
        return cls(
            heads,
            shape.split,
            shape.splits(context),
            positions * shape.head_dim * element,
            positions * padded * element,
        )

    @property
    def nbytes(self) -> int:
        return self.key_bytes + self.value_bytes


class Cache:
    """One KV cache, of all lanes of a process. Its memory becomes resident as it is filled."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._keys, self._values = (allocate(size, huge=False) for size in (shape.key_bytes, shape.value_bytes))
        self.struct = native.Cache(self._keys.ctypes.data, self._values.ctypes.data)

    def take(self, other: Cache, tokens: int) -> None:
        """Copy the first ``tokens`` tokens of another cache, in whole splits; what lies beyond is never read."""
        splits = -(-tokens // self._shape.split)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            shape = (self._shape.heads, self._shape.splits, -1)
            mine.reshape(shape)[:, :splits] = theirs.reshape(shape)[:, :splits]
