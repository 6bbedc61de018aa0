"""The CPU target: a compiled kernel on pinned threads. The host starts a request and reads tokens as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.program.sample import MAX_LOGPROBS, Choice, Sampling
from monolane.program.stage import Program
from monolane.program.tape import Tape
from monolane.target.base import Finish, Request, Token
from monolane.target.cpu import native
from monolane.target.cpu.memory import allocate

DEADLINE_S = 10.0  # the longest a worker waits for another before the request fails
POLL_MS = 100  # how often a waiting host looks up, so that Ctrl-C is seen
_FINISHES = {
    native.STOPPED: Finish.STOP,
    native.LENGTH_REACHED: Finish.LENGTH,
    native.ABORTED: Finish.ABORT,
}
_abandoned: list[object] = []  # memory that a stuck worker may still touch


class CpuTarget:
    """A tape and a cache behind a compiled kernel."""

    def __init__(
        self,
        library: native.Library,
        tape: Tape,
        context: int,
        processors: Sequence[int] | None,
        description: str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.name = description
        self.context = context
        self.bytes_per_token = tape.plan.bytes_per_token
        self._program = tape.plan.program
        self._library = library
        keys, values = (allocate(size) for size in cache_sizes(self._program, context))
        self._setup = native.make_setup(tape, context, keys, values, processors, deadline_s)
        self._engine: int | None = library.open(self._setup)
        self._lock = threading.Lock()

    def run(self, request: Request) -> CpuRun:
        arguments = native.make_request(request)
        with self._lock:
            engine = self._open_engine()
            if not self._library.start(engine, arguments):
                raise TargetError("A request is still running, or an earlier one got stuck.", "Wait, or load again.")
        return CpuRun(self, engine, arguments, request.logprobs is not None)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        scores = np.empty((len(tokens), self._program.vocab), np.float32)
        request = Request(tokens, 0, 0, frozenset(), Sampling())
        arguments = native.make_request(request, scores)
        with self._lock:
            engine = self._open_engine()
            if not self._library.start(engine, arguments):
                raise TargetError("A request is still running, or an earlier one got stuck.", "Wait, or load again.")
        for _ in CpuRun(self, engine, arguments, False):
            pass
        return scores

    def close(self) -> None:
        with self._lock:
            if self._engine is not None and not self._library.close(self._engine):
                _abandoned.append(self._setup)
            self._engine = None

    def _open_engine(self) -> int:
        if self._engine is None:
            raise TargetError("This target is closed.", "Load the model again.")
        return self._engine

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self.close()


class CpuRun:
    """A request on the workers."""

    def __init__(self, target: CpuTarget, engine: int, arguments: native.Arguments, logprobs: bool) -> None:
        self._target = target  # keeps the memory alive
        self._library = target._library
        self._engine = engine
        self._arguments = arguments
        self._logprobs = logprobs
        self.start_ns = self._library.start_ns(engine)
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[list[Token]]:
        seen = 0
        while self.finish is None:
            made = self._library.wait(self._engine, seen, POLL_MS)
            status = self._library.status(self._engine)
            if status != native.RUNNING:
                made = self._library.wait(self._engine, made, 0)  # what came between the two looks
            if made > seen:
                yield [self._token(entry) for entry in self._library.entries(self._engine, seen, made)]
                seen = made
            if status != native.RUNNING:
                self.finish = self._finish(status)

    def abort(self) -> None:
        if self.finish is None:
            self._library.abort(self._engine)

    def _token(self, entry: native.Entry) -> Token:
        if not self._logprobs:
            return Token(entry.token, entry.time_ns)
        choice = Choice(entry.token, entry.distance, entry.total)
        top = tuple(
            (entry.top_tokens[i], choice.logprob(entry.top_distances[i]))
            for i in range(min(entry.top_count, MAX_LOGPROBS))
        )
        return Token(entry.token, entry.time_ns, choice.logprob(entry.distance), top)

    def _finish(self, status: int) -> Finish:
        if status == native.STUCK:
            worker, missing, stage = self._library.stall(self._engine)
            where = self._target._program.stages[stage]
            layer = getattr(where, "layer", None)
            raise TargetError(
                f"Worker {missing} got stuck: worker {worker} waited for it at stage {where.name!r}"
                + (f" of layer {layer}." if layer is not None else "."),
                "Load the model again; use fewer workers if the machine is very busy.",
            )
        if status == native.NOT_A_NUMBER:
            raise TargetError("The model produced logits that are not numbers.", "Its weights are probably damaged.")
        return _FINISHES[status]


def cache_sizes(program: Program, context: int) -> tuple[int, int]:
    """Bytes of the keys and of the values: whole splits of positions, values padded to whole vectors."""
    shape = program.attention
    positions = program.layers * shape.kv_heads * shape.splits(context) * shape.split
    element = 2 if shape.cache_format == "bf16" else 4
    return positions * shape.head_dim * element, positions * -(-shape.head_dim // 16) * 16 * element
