"""Whose turn it is on the target, and what its caches hold from the turns before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from monolane.engine.constrained import ConstrainedRun, Constraint
from monolane.engine.prefix_caches import PrefixCaches
from monolane.errors import TargetError, UsageError
from monolane.target.base import Finish, Request, Run, Target, Token


class Turn:
    """A request under way. Iterating yields its tokens in batches; ``handed`` keeps the ids of all of them."""

    def __init__(self, run: Run, cached: int) -> None:
        self.run = run
        self._batches = iter(run)
        self.cached = cached
        self.handed: list[int] = []
        self.abort = run.abort

    def __iter__(self) -> Iterator[list[Token]]:
        for batch in self._batches:
            self.handed.extend(token.id for token in batch)
            yield batch

    def end(self) -> None:
        """Stop the run, if it has not ended, and wait until the target is free."""
        self.run.abort()
        for _ in self:
            pass
        if self.run.finish is None:  # Ctrl-C has hit the iteration itself: wait for the end in another one
            for _ in self.run:
                pass

    @property
    def finish(self) -> Finish | None:
        return self.run.finish

    @property
    def start_ns(self) -> int:
        return self.run.start_ns


class Session:
    """One target, one request at a time. It knows the tokens in the target's caches, so that a request that goes on
    from an earlier one (a conversation) computes only what is new."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread whose turn it is
        self._turn: Turn | None = None
        self._caches = PrefixCaches(target.caches)
        self._closed = False

    @contextmanager
    def turn(self, request: Request, constraint: Constraint | None = None) -> Iterator[Turn]:
        """Wait for the target, run the request (``cache`` and ``cached`` are filled in here), leave the target free."""
        with self._alone():
            placement = self._caches.place(request.tokens)
            try:
                if placement.source is not None:
                    self.target.copy(placement.source, placement.cache, placement.cached)
                placed = replace(request, cache=placement.cache, cached=placement.cached)
                run = ConstrainedRun(self.target, placed, constraint) if constraint else self.target.run(placed)
                turn = self._turn = Turn(run, placement.cached)
                try:
                    yield turn
                finally:
                    turn.end()
                    if turn.handed:  # the last token was sampled, but never fed back into the model
                        self._caches.keep(placement.cache, [*request.tokens, *turn.handed[:-1]])
            except TargetError:
                self._caches.forget(placement.cache)
                raise
            finally:
                self._turn = None

    def close(self) -> None:
        """End the run under way, if any, and the target. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        if turn := self._turn:
            turn.abort()
        if turn and self._owner == threading.get_ident():  # a stream this very thread has left half read
            turn.end()
            self.target.close()
            return
        with self._lock:
            self.target.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._check_open()
        if self._owner == threading.get_ident():
            raise UsageError(
                "Another stream of this LLM is still being read.",
                "Read it to its end, or leave its loop, before the next request: there is one request at a time.",
            )
        with self._lock:
            self._check_open()  # it may have been closed while we waited
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("This LLM has been closed.", "Open another one.")
