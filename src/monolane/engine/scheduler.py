"""Scheduling: one request at a time runs in the engine process, the others wait in the queue of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from monolane.engine import messages
from monolane.engine.answer import Answer
from monolane.engine.engine_process import EngineProcess
from monolane.engine.queue import WaitingQueue
from monolane.engine.state import Counters
from monolane.errors import MonolaneError, QueueFullError
from monolane.target.base import Finish


class Scheduler:
    """The running request, the queue behind it, and the engine process while one is ready. Engines on one machine share
    the queue."""

    def __init__(self, queue: WaitingQueue) -> None:
        self.queue = queue
        self.running: Answer | None = None
        self.counters = Counters()
        self._process: EngineProcess | None = None
        self._number = 0  # of the latest request that was sent to the process
        self._cancelled = 0  # the latest request that was cancelled
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, answer: Answer) -> None:
        """Run a request at once, or queue it. QueueFullError where the queue is full."""
        try:
            self.queue.join(self, answer)
        except QueueFullError:
            self.counters.refused += 1
            raise
        self._idle.clear()
        self.counters.requests += 1
        self.counters.prompt_tokens += answer.prompt_tokens

    def cancel(self, answer: Answer) -> None:
        if answer is not self.running:
            self.queue.leave(answer)
            answer.end(Finish.ABORT)
            self._over(answer)
        elif self._process is not None and self._cancelled != self._number:
            self._cancelled = self._number
            self._process.send(messages.Cancel(self._number))

    @property
    def waiting(self) -> int:
        """The number of requests that wait, without the one that runs."""
        return self.queue.waiting_for(self)

    @property
    def can_run(self) -> bool:
        return self._process is not None

    def run(self, answer: Answer) -> None:
        """Called by the queue: it is this request's turn."""
        self.running = answer
        self._number += 1
        answer.scheduled()
        if self._process is not None:
            request, more = answer.request, (answer.grammar, answer.wants_prompt_logprobs)
            self._process.send(messages.Submit(self._number, request, *more))

    def connect(self, process: EngineProcess) -> None:
        """A process is ready: the first request of the queue runs."""
        self._process = process
        self.queue.advance()

    def disconnect(self, error: MonolaneError) -> None:
        """The process is gone, and the running request fails. Queued requests go on waiting."""
        self._process = None
        self._end_running(error)

    def refuse_waiting(self, error: MonolaneError) -> None:
        """Fail all queued requests."""
        for answer in self.queue.leave_all(self):
            answer.fail(error)
            self._over(answer)

    async def drained(self, seconds: float) -> None:
        """Wait until no request runs or waits, for so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    # --- what the engine process reports ---

    def started(self, number: int, cached_tokens: int) -> None:
        if self.running is not None and number == self._number:
            self.running.started(cached_tokens)
            self.counters.cached_tokens += cached_tokens
            self.counters.cache_hits += cached_tokens > 0

    def scored(self, number: int, entries: Sequence[messages.Scored]) -> None:
        if self.running is not None and number == self._number:
            self.running.scored(entries)

    def tokens_written(self, written: int) -> None:
        if self._process is None:
            return
        tokens = self._process.tokens(written)
        self.counters.generated_tokens += len(tokens)
        if self.running is not None and not self.running.take(tokens):
            self.cancel(self.running)

    def ended(self, number: int, finish: Finish, start_ns: int) -> None:
        if self.running is not None and number == self._number:
            self.running.end(finish, start_ns)
            self._end_running()

    def refused(self, number: int, error: MonolaneError) -> None:
        if number == self._number:
            self._end_running(error)

    # --- inside ---

    def _end_running(self, error: MonolaneError | None = None) -> None:
        answer, self.running = self.running, None
        if answer is None:
            return
        if error is not None:
            answer.fail(error)
        self.queue.freed()
        self._over(answer)

    def _over(self, answer: Answer) -> None:
        """Count a request that is over; where it was the last one, the scheduler is idle."""
        if self.running is None and not self.waiting:
            self._idle.set()
        if answer.failed:
            self.counters.failed += 1
            return
        timings = answer.result.timings
        self.counters.finished[answer.result.finish_reason] += 1
        self.counters.queue_s += timings.queue_s
        self.counters.first_token_s += timings.first_token_s or 0.0
