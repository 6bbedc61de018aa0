"""An answer while it is being written."""

from __future__ import annotations

from collections.abc import Iterator

from monolane.engine.result import Completion, Delta, FinishReason, Timings
from monolane.engine.session import Session, Turn
from monolane.engine.transcript import Transcript
from monolane.errors import UsageError
from monolane.target.base import Finish, Request

FINISH_REASONS: dict[Finish | None, FinishReason] = {Finish.STOP: "stop", Finish.LENGTH: "length"}


class Stream:
    """Iterate once for the pieces of the answer; afterwards ``result`` is the whole of it.

    The request starts with the iteration, when earlier requests are through. Leaving the loop early stops it.
    """

    def __init__(self, session: Session, request: Request, transcript: Transcript) -> None:
        self._session = session
        self._request = request
        self._transcript = transcript
        self._turn: Turn | None = None
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
        with self._session.turn(self._request) as turn:
            self._turn = turn
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
        transcript, prompt_tokens = self._transcript, len(self._request.tokens)
        return Completion(
            text=transcript.text,
            token_ids=tuple(token.id for token in transcript.tokens),
            finish_reason=finish,
            prompt_tokens=prompt_tokens,
            logprobs=transcript.logprobs(transcript.tokens),
            seed=self._request.sampling.seed,
            timings=Timings.measure(
                prompt_tokens=prompt_tokens,
                cached_tokens=self._turn.cached if self._turn else 0,
                start_ns=self._turn.start_ns if self._turn else 0,
                times_ns=[token.time_ns for token in transcript.tokens],
                bytes_per_token=self._session.target.bytes_per_token,
            ),
        )
