"""The interpreter behind the interface of a target: for machines without a C++ compiler, and for tests. It is slow."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.program.interpret import Interpreter
from monolane.program.sample import Sampler
from monolane.program.tape import Tape
from monolane.target.base import Finish, Request, Token


class InterpreterTarget:
    """Runs a plan in NumPy. It has one KV cache."""

    def __init__(self, tapes: Sequence[Tape], context: int, memory_bytes: int = 0) -> None:
        self.name = "interpreter (NumPy)"
        self.context = context
        self.caches = 1
        self.memory_bytes = memory_bytes
        self.stall_s = math.inf
        self.bytes_per_token = sum(tape.plan.bytes_per_token for tape in tapes)
        self._tapes = tapes
        self._interpreter = Interpreter(tapes, context)
        self._running = threading.Lock()

    def run(self, request: Request) -> InterpreterRun:
        if not self._running.acquire(blocking=False):
            raise TargetError("A request is still running.", "Wait for it, or abort it.")
        return InterpreterRun(self._interpreter, request, self._running)

    def copy(self, source: int, destination: int, tokens: int) -> None:
        """Does nothing: there is only one KV cache."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return Interpreter(self._tapes, self.context).logits(tokens)

    def close(self) -> None:
        pass


class InterpreterRun:
    """A request that advances only while it is iterated."""

    def __init__(self, interpreter: Interpreter, request: Request, running: threading.Lock) -> None:
        self._interpreter = interpreter
        self._request = request
        self._running = running
        self._abort = threading.Event()
        self.start_ns = time.monotonic_ns()
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[list[Token]]:
        try:
            yield from self._tokens()
        finally:
            self.finish = self.finish or Finish.ABORT
            self._running.release()

    def abort(self) -> None:
        self._abort.set()

    @property
    def steps(self) -> int:
        return time.monotonic_ns()  # it always grows: there is no worker that could be stuck

    def _tokens(self) -> Iterator[list[Token]]:
        request, vocab = self._request, self._interpreter.program.vocab
        sampler = Sampler(request.sampling, vocab, np.array(request.tokens, np.int64), request.logprobs)
        fed, pending = request.cached, list(request.tokens[request.cached :])
        for made in range(1, request.max_tokens + 1):
            logits = self._interpreter.logits(pending, fed, last_only=True)[0]
            fed += len(pending)
            choice = sampler.choose(logits, fed)
            pending = [choice.token]
            if choice.token in request.stop_tokens:
                self.finish = Finish.STOP
            elif made == request.max_tokens:
                self.finish = Finish.LENGTH
            if request.logprobs is None:
                yield [Token(choice.token, time.monotonic_ns())]
            else:
                top = tuple((token, choice.logprob(distance)) for token, distance in choice.top)
                yield [Token(choice.token, time.monotonic_ns(), choice.logprob(choice.distance), top)]
            if self._abort.is_set() or self.finish:
                return
