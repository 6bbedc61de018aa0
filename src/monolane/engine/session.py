"""Exclusive access to the target, one request at a time, with prefix caching between requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from monolane.engine.constraint import Constraint
from monolane.engine.generation import Generation
from monolane.engine.messages import Scored
from monolane.engine.prefix_caches import PrefixCaches
from monolane.engine.scoring import scored
from monolane.errors import TargetError, UsageError
from monolane.target.base import Request, Target


class Session:
    """A target that threads share: each request waits until the one before has ended. The session knows the tokens in
    the target's KV caches, so a request that continues an earlier one computes only its new tokens."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread that holds the lock
        self._generation: Generation | None = None
        self._caches = PrefixCaches(target.caches)
        self._closed = False

    @contextmanager
    def generate(self, request: Request, constraint: Constraint | None = None) -> Iterator[Generation]:
        """Wait for the target, choose the request's KV cache, and run it. After the block the target is free."""
        with self._exclusive():
            placement = self._caches.place(request.tokens)
            try:
                if placement.source is not None:
                    self.target.copy(placement.source, placement.cache, placement.cached)
                placed = replace(request, cache=placement.cache, cached=placement.cached)
                generation = self._generation = Generation(self.target, placed, constraint)
                try:
                    yield generation
                finally:
                    generation.end()
                    if generation.made:  # the last token was sampled, but never fed back into the model
                        self._caches.keep(placement.cache, [*request.tokens, *generation.made[:-1]])
            except TargetError:
                self._caches.forget(placement.cache)
                raise
            finally:
                self._generation = None

    def prompt_logprobs(self, tokens: Sequence[int], top: int) -> list[Scored]:
        """The logprobs of a prompt's tokens, from the second one on, and of the ``top`` likeliest in their place."""
        with self._exclusive():
            self._caches.forget(0)  # which the target uses for this
            return scored(self.target.logits(tokens), tokens, top)

    def close(self) -> None:
        """Abort the running request, if any, and close the target. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if generation := self._generation:
            generation.abort()
        if generation and self._owner == threading.get_ident():  # a stream that this thread has left half read
            generation.end()
            self.target.close()
            return
        with self._lock:
            self.target.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._check_open()
        if self._owner == threading.get_ident():
            raise UsageError(
                "Another stream of this LLM is still being read.",
                "Read it to its end, or leave its loop, before the next request: there is one request at a time.",
            )
        with self._lock:
            self._check_open()  # it may have been closed while this thread waited
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("This LLM has been closed.", "Open another one.")
