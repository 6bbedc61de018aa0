"""One request to the engine process, as its client sees it: events from the queue to the last token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

from monolane.engine import messages
from monolane.engine.result import Completion, Delta, TokenLogprob
from monolane.engine.transcript import Transcript
from monolane.errors import SlowReaderError, UsageError
from monolane.target.base import Finish, Token

MAX_UNREAD = 1 << 16  # tokens and logprob entries that wait to be read; with more, the answer fails


@dataclass(frozen=True)
class Queued:
    """The request waits in the queue; position 1 is the next to run."""

    position: int


@dataclass(frozen=True)
class Started:
    """The request runs, after ``queue_s`` seconds in the queue. ``cached_tokens`` of its prompt were in a KV cache."""

    cached_tokens: int
    queue_s: float


Event = Queued | Started | Delta


class Answer:
    """Iterate for the events; afterwards ``result`` is the whole answer. Leaving ``async with`` cancels the request.

    The engine never waits for the reader: pieces that were not read yet are joined into one.
    """

    def __init__(
        self,
        transcript: Transcript,
        grammar: str | None,
        bytes_per_token: int,
        on_cancel: Callable[[Answer], None],
        *,
        prompt_logprobs: int | None = None,
        longest_s: float | None = None,
    ) -> None:
        """``prompt_logprobs``: how many of the likeliest tokens to tell at every position of the prompt. ``longest_s``:
        the seconds that the answer may take once it runs; then it ends as if it had reached its longest."""
        self.request = transcript.request
        self.grammar = grammar
        self.wants_prompt_logprobs = prompt_logprobs
        self.prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # from the second token on
        self.prompt_tokens = len(self.request.tokens)
        self.position = 0  # in the queue; 0 where the request runs or is over
        self.cached_tokens = 0
        self._transcript = transcript
        self._bytes_per_token = bytes_per_token
        self._on_cancel = on_cancel
        self._submitted_s = time.monotonic()
        self._queue_s = 0.0
        self._queued: Queued | None = None  # this, _started and _unread: events that were not read yet
        self._started: Started | None = None
        self._unread: list[Delta] = []
        self._unread_size = 0
        self._changed = asyncio.Event()
        self._result: Completion | None = None
        self._error: Exception | None = None
        self._longest_s = longest_s
        self._timer: asyncio.TimerHandle | None = None
        self._out_of_time = False

    # --- for the client ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while (event := self._next_event()) is None:
            if self._error is not None:
                raise self._error
            if self._result is not None:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return event

    async def whole(self) -> Completion:
        """Read to the end."""
        async with self:
            async for _ in self:
                pass
        return self.result

    @property
    def result(self) -> Completion:
        """The whole answer, once the iteration has ended."""
        if self._result is None:
            raise UsageError(
                "The answer has not come to its end.", "Read it to the end first; then ask for its result."
            )
        return self._result

    def cancel(self) -> None:
        """Leave the queue at once, or stop within one token. After the end it does nothing."""
        if not self.over:
            self._on_cancel(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    # --- for the scheduler ---

    @property
    def over(self) -> bool:
        return self._result is not None or self._error is not None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def queued(self, position: int) -> None:
        self.position = position
        self._queued = Queued(position)
        self._changed.set()

    def scheduled(self) -> None:
        """The request was sent to the engine process."""
        self.position, self._queued = 0, None
        self._queue_s = time.monotonic() - self._submitted_s
        if self._longest_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._longest_s, self._run_out_of_time)

    def scored(self, entries: Sequence[messages.Scored]) -> None:
        """The prompt's own logprobs have come: of every token but the first."""
        self.prompt_logprobs = tuple(
            TokenLogprob.of(Token(token, 0, entry.logprob, tuple(entry.top)))
            for token, entry in zip(self.request.tokens[1:], entries, strict=True)
        )

    def started(self, cached_tokens: int) -> None:
        self.cached_tokens = cached_tokens
        self._started = Started(cached_tokens, self._queue_s)
        self._changed.set()

    def take(self, tokens: Sequence[Token]) -> bool:
        """Add tokens; False where no more are wanted, after a stop string or because the client does not read."""
        if self.over:
            return False
        self._add(self._transcript.take(tokens))
        if self._unread_size > MAX_UNREAD:
            self._unread.clear()
            self.fail(SlowReaderError(f"{MAX_UNREAD} tokens of the answer were not read.", "Read faster."))
        return not self._transcript.stopped and not self.over

    def end(self, finish: Finish, start_ns: int = 0) -> None:
        if self.over:
            return
        if self._out_of_time and finish is Finish.ABORT:
            finish = Finish.LENGTH
        self._stop_timer()
        self._add(self._transcript.flush())
        self._result = self._transcript.completion(
            self._transcript.finish_reason(finish),
            cached_tokens=self.cached_tokens,
            queue_s=self._queue_s,
            start_ns=start_ns,
            bytes_per_token=self._bytes_per_token,
        )
        self._changed.set()

    def fail(self, error: Exception) -> None:
        if not self.over:
            self._error = error
            self._stop_timer()
            self._changed.set()

    def _run_out_of_time(self) -> None:
        self._out_of_time = True
        self.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _add(self, delta: Delta | None) -> None:
        if delta:
            self._unread.append(delta)
            self._unread_size += len(delta.token_ids) + sum(1 + len(entry.top) for entry in delta.logprobs or ())
            self._changed.set()

    def _next_event(self) -> Event | None:
        if (queued := self._queued) is not None:
            self._queued = None
            return queued
        if (started := self._started) is not None:
            self._started = None
            return started
        unread, self._unread, self._unread_size = self._unread, [], 0
        return joined(unread) if unread else None


def joined(pieces: Sequence[Delta]) -> Delta:
    """Several pieces of an answer as one."""
    if len(pieces) == 1:
        return pieces[0]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Delta(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
    )
