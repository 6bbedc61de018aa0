"""The one fake target: it gives an answer that is written down beforehand, at times that are known beforehand.

It keeps its caches like a real one and refuses a request that claims what is not there. It can also be told to fail, in
all the ways targets and their processes fail.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.target.base import Finish, Request, Token

MOST_AT_ONCE = 64  # tokens handed over together where the reader has fallen behind


class FakeClock:
    """Nobody waits by it: whoever would have waited sets it forward."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds

    def wait_until(self, seconds: float, aborted: threading.Event) -> bool:
        """True where the wait ended because the request was aborted."""
        if not aborted.is_set():
            self.seconds = max(self.seconds, seconds)
        return aborted.is_set()


class RealClock:
    def now_s(self) -> float:
        return time.monotonic()

    def wait_until(self, seconds: float, aborted: threading.Event) -> bool:
        early_s = seconds - time.monotonic()
        return aborted.wait(early_s) if early_s > 0 else aborted.is_set()


@dataclass(frozen=True)
class Faults:
    """``planned``: a comma-separated list of

    crash@n, error@n    a request dies with its process, or fails, at its n-th token
    stall@n, freeze@n   from the n-th token on the device does nothing, or the whole process stops
    busy@n              at the n-th token no other thread of the process gets the GIL for two seconds
    end@n               a request ends with its n-th token, though more were asked for

    and of whatever else somebody asks for by name. ``only_once`` is the path of a file that is made at the first fault,
    and after which there are no more.
    """

    planned: str = ""
    only_once: str = ""

    def strike(self, where: str) -> bool:
        if where not in self.planned.split(",") or (self.only_once and Path(self.only_once).exists()):
            return False
        if self.only_once:
            Path(self.only_once).touch()
        return True


@dataclass
class FakeTarget:
    """Answers every request with ``answer``, over and over.

    Seconds by its clock: ``start_s`` before and after a request, ``prompt_s`` per position that is not cached,
    ``token_s`` per token after the first, ``position_s`` more for every position before it, ``sampling_s`` and
    ``logprobs_s`` more where they are asked for, and ``jitter_s`` more in turn. The device's clock, which stamps the
    tokens, runs ``drift`` times as fast.
    """

    answer: Sequence[int] = range(7)
    name: str = "fake"
    context: int = 256
    caches: int = 1
    bytes_per_token: int = 1_000
    memory_bytes: int = 2_000
    vocab: int = 0  # 0: it has no logits
    stall_s: float = 0.7
    clock: FakeClock | RealClock = field(default_factory=FakeClock)
    start_s: float = 0.0
    prompt_s: float = 0.0
    token_s: float = 0.0
    position_s: float = 0.0
    sampling_s: float = 0.0
    logprobs_s: float = 0.0
    jitter_s: Sequence[float] = (0.0,)
    drift: float = 1.0
    at_once: int | None = 1  # tokens handed over together; None: as many as should have been made by now
    faults: Faults = Faults()
    checks_cache: bool = True  # a real target cannot: it believes what a request says is cached
    requests: list[Request] = field(default_factory=list)
    first_token: threading.Event = field(default_factory=threading.Event)
    running: FakeRun | None = None  # the latest
    closed: bool = False

    def __post_init__(self) -> None:
        self.cached: list[list[int]] = [[] for _ in range(self.caches)]  # the tokens in each cache

    def slow_down(self, token_s: float) -> None:
        """From now on tokens take real time."""
        self.clock, self.token_s = RealClock(), token_s

    def device_ns(self, seconds: float) -> int:
        return round(seconds * self.drift * 1e9)

    def run(self, request: Request) -> FakeRun:
        assert not self.closed
        assert len(request.tokens) + request.max_tokens <= self.context
        assert request.cached < len(request.tokens)
        if self.running is not None and self.running.finish is None:
            raise TargetError("A request is still running.")
        held = self.cached[request.cache][: request.cached]
        if self.checks_cache and list(request.tokens[: request.cached]) != held:
            raise TargetError("What was said to be in the cache is not there.")
        self.requests.append(request)
        self.clock.wait_until(self.clock.now_s() + self.start_s, threading.Event())
        self.running = FakeRun(self, request)
        return self.running

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self.cached[destination] = self.cached[source][:tokens]

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The likeliest token is the one that was there before, then those after it, in turn."""
        if not self.vocab:
            raise TargetError("There is no model behind this target.")
        self.cached[0] = []
        return -((np.arange(self.vocab) - np.array(tokens)[:, None]) % self.vocab).astype(np.float32)

    def close(self) -> None:
        self.closed = True


class FakeRun:
    def __init__(self, target: FakeTarget, request: Request) -> None:
        self._target = target
        self._request = request
        self._aborted = threading.Event()
        self._stalled = False
        self._start_s = target.clock.now_s()
        self.start_ns = target.device_ns(self._start_s)
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[list[Token]]:
        target, request = self._target, self._request
        cache = target.cached[request.cache] = list(request.tokens[: request.cached])
        try:
            for batch in self._batches():
                if len(cache) < len(request.tokens):
                    cache += request.tokens[len(cache) :]
                cache += [token.id for token in batch]
                yield batch
        except TargetError:
            cache.clear()
            raise
        finally:
            del cache[max(len(request.tokens), len(cache) - 1) :]  # the last token was never fed
            target.clock.wait_until(target.clock.now_s() + target.start_s, self._aborted)
            self.finish = self.finish or Finish.ABORT

    def abort(self) -> None:
        self._aborted.set()

    @property
    def steps(self) -> int:
        return 0 if self._stalled else time.monotonic_ns()

    def _batches(self) -> Iterator[list[Token]]:
        target, request = self._target, self._request
        batch: list[Token] = []
        finish: Finish | None = None
        for count, (token, due_s) in enumerate(zip(itertools.cycle(target.answer), self._times(), strict=False)):
            if batch and self._is_full(batch, due_s):
                yield batch
                batch = []
            if target.clock.wait_until(due_s, self._aborted):
                finish = Finish.ABORT
                break
            self._fail(count)
            batch.append(self._token(token, due_s))
            target.first_token.set()
            if token in request.stop_tokens:
                finish = Finish.STOP
            elif count + 1 == request.max_tokens or target.faults.strike(f"end@{count + 1}"):
                finish = Finish.LENGTH
            if finish:
                break
        if batch:
            yield batch
        self.finish = finish

    def _times(self) -> Iterator[float]:
        """When each token is due."""
        target, request = self._target, self._request
        due_s = self._start_s + target.prompt_s * (len(request.tokens) - request.cached)
        for made in itertools.count(1):
            yield due_s
            due_s += target.token_s + target.position_s * (len(request.tokens) + made)
            due_s += target.sampling_s * (request.sampling.temperature > 0)
            due_s += target.logprobs_s * (request.logprobs is not None)
            due_s += target.jitter_s[made % len(target.jitter_s)]

    def _is_full(self, batch: list[Token], next_due_s: float) -> bool:
        if self._target.at_once is not None:
            return len(batch) == self._target.at_once
        return len(batch) == MOST_AT_ONCE or next_due_s > self._target.clock.now_s()

    def _token(self, token: int, due_s: float) -> Token:
        time_ns, logprobs = self._target.device_ns(due_s), self._request.logprobs
        if logprobs is None:
            return Token(token, time_ns)
        return Token(token, time_ns, -0.5, tuple((other, -1.0 - other) for other in range(logprobs)))

    def _fail(self, count: int) -> None:
        strike = self._target.faults.strike
        if strike(f"crash@{count}"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if strike(f"error@{count}"):
            raise TargetError("Worker 1 got stuck.", "Load the model again.")
        if strike(f"freeze@{count}"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if strike(f"stall@{count}"):
            self._stalled = True
            threading.Event().wait()
        if strike(f"busy@{count}"):
            _hold_the_gil(seconds=2.0)


def _hold_the_gil(seconds: float) -> None:
    """As a library does that computes for long without releasing the GIL."""
    before, end_s = sys.getswitchinterval(), time.monotonic() + seconds
    sys.setswitchinterval(2 * seconds)
    while time.monotonic() < end_s:
        pass
    sys.setswitchinterval(before)
