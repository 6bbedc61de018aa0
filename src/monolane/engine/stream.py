"""An answer of the Python API, piece by piece while it is generated."""

from __future__ import annotations

import time
from collections.abc import Iterator

from monolane.engine.generation import Generation
from monolane.engine.result import Completion, Delta, FinishReason
from monolane.engine.session import Session
from monolane.engine.transcript import Transcript
from monolane.errors import UsageError


class Stream:
    """Iterate once for the pieces of the answer; afterwards ``result`` is the whole of it.

    The request starts with the iteration, as soon as earlier requests have ended. Leaving the loop early stops it.
    """

    def __init__(self, session: Session, transcript: Transcript) -> None:
        self._session = session
        self._transcript = transcript
        self._generation: Generation | None = None
        self._queue_s = 0.0
        self._begun = False
        self._aborted = False
        self._result: Completion | None = None

    def __iter__(self) -> Iterator[Delta]:
        if self._begun:
            raise UsageError("This stream has been read already.", "Ask again for another one; its result is kept.")
        self._begun = True
        if self._aborted:  # before it began: the target never sees the request
            self._result = self._completion("abort")
            return
        transcript, asked = self._transcript, time.monotonic()
        with self._session.generate(transcript.request) as generation:
            self._generation, self._queue_s = generation, time.monotonic() - asked
            if self._aborted:
                generation.abort()
            try:
                for batch in generation:
                    delta = transcript.take(batch)
                    if transcript.stopped:
                        generation.abort()
                    if delta:
                        yield delta
                if delta := transcript.flush():
                    yield delta
            except GeneratorExit:
                self._result = self._completion("abort")
                raise
            self._result = self._completion(transcript.finish_reason(generation.finish))

    def abort(self) -> None:
        """Stop within one token; the iteration ends by itself. It may be called from any thread, at any time."""
        self._aborted = True
        if generation := self._generation:
            generation.abort()

    @property
    def result(self) -> Completion:
        """The whole answer, once the iteration has ended."""
        if self._result is None:
            raise UsageError(
                "The stream has not come to its end.", "Read it to the end first; then ask for its result."
            )
        return self._result

    def _completion(self, finish: FinishReason) -> Completion:
        generation = self._generation
        return self._transcript.completion(
            finish,
            cached_tokens=generation.cached if generation else 0,
            queue_s=self._queue_s,
            start_ns=generation.start_ns if generation else 0,
            bytes_per_token=self._session.target.bytes_per_token,
        )
