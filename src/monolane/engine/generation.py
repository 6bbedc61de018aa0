"""One request on the target: a single run, or, under a constraint, one run per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from monolane.engine.constraint import Constraint, masked
from monolane.target.base import Finish, Request, Run, Target, Token


class Generation:
    """A request that is being generated. Iterating yields its tokens in batches; ``made`` has the ids of all of them.

    Without a constraint the kernel decodes the whole answer in one run. Under a constraint every token is a run of its
    own, which finds all tokens before it in the KV cache.
    """

    def __init__(self, target: Target, request: Request, constraint: Constraint | None = None) -> None:
        self._target = target
        self._request = request
        self._constraint = constraint
        self._run: Run | None = None
        self._batches: Iterator[list[Token]] = iter(())  # of the run; shared by the reader and by ``end``
        self._aborted = False
        self.cached = request.cached
        self.made: list[int] = []
        self.start_ns = 0  # when the target started the first run, on its own clock
        self.finish: Finish | None = None
        self._start_run()

    def __iter__(self) -> Iterator[list[Token]]:
        while self.finish is None:
            for batch in self._batches:
                self._record(batch)
                yield batch
            self.finish = self._finish()
            if self.finish is None:
                self._start_run()

    def abort(self) -> None:
        """Stop within one token. It may be called from any thread, and after the end."""
        self._aborted = True
        if (run := self._run) is not None:
            run.abort()

    def end(self) -> None:
        """Stop the request, if it has not ended, and wait until the target is free."""
        self.abort()
        for batch in self._batches:
            self.made += [token.id for token in batch]
        if self._run is not None and self._run.finish is None:  # Ctrl-C has ended the iteration, but not the run
            for _ in self._run:
                pass
        self.finish = self.finish or Finish.ABORT

    @property
    def steps(self) -> int:
        """A progress counter for the watchdog: see ``Run.steps``."""
        run = self._run
        return len(self.made) + (0 if run is None else run.steps)

    def _start_run(self) -> None:
        """Start the only run, or the run of the next token. Where no token may come next, the answer is complete."""
        request = self._request
        if self._constraint is not None:
            allowed = self._constraint.allowed()
            if not allowed.any():
                self.finish = Finish.STOP
                return
            tokens = [*request.tokens, *self.made]
            request = replace(
                request,
                tokens=tokens,
                cached=len(tokens) - 1 if self.made else request.cached,
                max_tokens=1,
                sampling=masked(request.sampling, allowed, Counter(self.made)),
            )
        self._run = self._target.run(request)
        self._batches = iter(self._run)
        if self._aborted:  # before there was a run to abort
            self._run.abort()

    def _record(self, batch: list[Token]) -> None:
        assert self._run is not None
        self.start_ns = self.start_ns or self._run.start_ns
        self.made += [token.id for token in batch]
        if self._constraint is not None:
            for token in batch:
                if token.id not in self._request.stop_tokens:
                    self._constraint.accept(token.id)

    def _finish(self) -> Finish | None:
        """Why the request ends with the run that has ended; None where another run follows."""
        assert self._run is not None
        self.start_ns = self.start_ns or self._run.start_ns
        if self._constraint is None or self._run.finish in (Finish.STOP, Finish.ABORT):
            return self._run.finish
        if len(self.made) == self._request.max_tokens:
            return Finish.LENGTH
        return Finish.ABORT if self._aborted else None
