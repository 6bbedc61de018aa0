"""Who is answered now, and who waits: one request at a time goes to the engine's process, and its tokens come back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from monolane.engine import messages
from monolane.engine.answer import Answer
from monolane.engine.engine_process import EngineProcess
from monolane.engine.queue import WaitingQueue
from monolane.engine.state import Counters
from monolane.errors import EngineFailedError, MonolaneError, QueueFullError, UsageError
from monolane.target.base import Finish


class Dispatch:
    """The running request, the queue behind it, and the process that works, while there is one."""

    def __init__(self, queue_limit: int) -> None:
        self.queue = WaitingQueue(queue_limit)
        self.running: Answer | None = None
        self.counters = Counters()
        self._process: EngineProcess | None = None
        self._number = 0  # of the latest request that went to the process
        self._cancelled = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, answer: Answer) -> None:
        """It runs at once, or waits. QueueFullError where no more may wait."""
        try:
            if self.running is None and self._process is not None:
                self._run(answer, self._process)
            else:
                self.queue.join(answer)
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

    def connect(self, process: EngineProcess) -> None:
        """A process is ready for those who wait."""
        self._process = process
        self._next()

    def disconnect(self, error: MonolaneError) -> None:
        """It is not there any more, and the request it was at has failed. Those who wait go on waiting."""
        self._process = None
        if self.running is not None:
            self._end_running(error)

    def refuse_waiting(self, error: MonolaneError) -> None:
        for answer in self.queue.leave_all():
            answer.fail(error)
            self._over(answer)

    async def drained(self, seconds: float) -> None:
        """Wait until nobody runs or waits, but no longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def hear(self, message: messages.FromEngine) -> None:
        """What the process says about requests."""
        match message:
            case messages.Tokens(written):
                self._take_tokens(written)
            case messages.Started(number, cached) if answer := self._current(number):
                answer.started(cached)
                self.counters.cached_tokens += cached
                self.counters.cache_hits += cached > 0
            case messages.Ended(number, finish, start_ns) if answer := self._current(number):
                answer.end(finish, start_ns)
                self._end_running(None)
            case messages.Refused(number, text, hint) if self._current(number):
                self._end_running(UsageError(text, hint))
            case messages.Failed(_, text, hint):
                self.disconnect(EngineFailedError(text, hint))

    def _current(self, number: int) -> Answer | None:
        return self.running if number == self._number else None

    def _run(self, answer: Answer, process: EngineProcess) -> None:
        self.running = answer
        self._number += 1
        answer.turn_comes()
        process.send(messages.Run(self._number, answer.request, answer.grammar))

    def _next(self) -> None:
        if self._process is not None and (answer := self.queue.next()):
            self._run(answer, self._process)

    def _take_tokens(self, written: int) -> None:
        if self._process is None:
            return
        tokens = self._process.tokens(written)
        self.counters.generated_tokens += len(tokens)
        if (answer := self.running) is not None and not answer.take(tokens):
            self.cancel(answer)

    def _end_running(self, error: MonolaneError | None) -> None:
        answer, self.running = self.running, None
        if answer is None:
            return
        if error is not None:
            answer.fail(error)
        self._next()
        self._over(answer)

    def _over(self, answer: Answer) -> None:
        """Count it, and see whether all is done."""
        if self.running is None and not self.queue:
            self._idle.set()
        if answer.failed:
            self.counters.failed += 1
            return
        timings = answer.result.timings
        self.counters.finished[answer.result.finish_reason] += 1
        self.counters.queue_s += timings.queue_s
        self.counters.first_token_s += timings.first_token_s or 0.0
