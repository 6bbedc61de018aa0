"""An answer while it is being written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from monolane.engine.result import FINISH_REASONS, Completion, Delta, FinishReason
from monolane.engine.session import Session, Turn
from monolane.engine.transcript import Transcript, completion
from monolane.errors import UsageError
from monolane.target.base import Request


class Stream:
    """Iterate once for the pieces of the answer; afterwards ``result`` is the whole of it.

    The request starts with the iteration, when earlier requests are through. Leaving the loop early stops it.
    """

    def __init__(self, session: Session, request: Request, transcript: Transcript) -> None:
        self._session = session
        self._request = request
        self._transcript = transcript
        self._turn: Turn | None = None
        self._queue_s = 0.0
        self._begun = False
        self._aborted = False
        self._result: Completion | None = None

    def __iter__(self) -> Iterator[Delta]:
        if self._begun:
            raise UsageError("This stream has been read already.", "Ask again for another one; its result is kept.")
        self._begun = True
        if self._aborted:  # before its turn came: the target need not know
            self._result = self._completion("abort")
            return
        asked = time.monotonic()
        with self._session.turn(self._request) as turn:
            self._turn, self._queue_s = turn, time.monotonic() - asked
            if self._aborted:
                turn.abort()
            try:
                yield from self._deltas(turn)
            except GeneratorExit:
                self._result = self._completion("abort")
                raise
            stopped = self._transcript.stopped
            self._result = self._completion("stop" if stopped else FINISH_REASONS.get(turn.finish, "abort"))

    def abort(self) -> None:
        """Stop within one token; the iteration ends by itself. Safe from any thread, at any time."""
        self._aborted = True
        if turn := self._turn:
            turn.abort()

    @property
    def result(self) -> Completion:
        """The whole answer, once the iteration has ended."""
        if self._result is None:
            raise UsageError(
                "The stream has not come to its end.", "Read it to the end first; then ask for its result."
            )
        return self._result

    def _deltas(self, turn: Turn) -> Iterator[Delta]:
        for batch in turn:
            delta = self._transcript.take(batch)
            if self._transcript.stopped:
                turn.abort()
            if delta:
                yield delta
        if delta := self._transcript.flush():
            yield delta

    def _completion(self, finish: FinishReason) -> Completion:
        turn = self._turn
        return completion(
            self._request,
            self._transcript,
            finish,
            cached_tokens=turn.cached if turn else 0,
            queue_s=self._queue_s,
            start_ns=turn.start_ns if turn else 0,
            bytes_per_token=self._session.target.bytes_per_token,
        )
