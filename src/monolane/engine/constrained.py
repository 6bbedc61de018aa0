"""Answers that must follow a form: token by token, with only those tokens in the draw that the form allows.

A kernel decodes on its own; a form (JSON, a regular expression) is known to the host alone. So the host asks for one
token at a time: each is a run of its own that finds everything before it in the cache. What is forbidden is pushed out
of the draw by a bias that no logit can make up for, which every target's sampler can do. A token's random number is
made of the seed, the position and its id alone, so a form that allows everything changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.program.sample import LOGIT_BITS, Sampling
from monolane.target.base import Finish, Request, Run, Target, Token

OUT_OF_REACH = 32768.0  # logits; the most extreme ones are clamped at 2047, and penalties multiply them by 10 at most


class Constraint(Protocol):
    """The form of an answer, as far as it has come."""

    def allowed(self) -> NDArray[np.bool_]:
        """[vocab]: which tokens may come next. None of them: the answer is complete."""

    def accept(self, token: int) -> None:
        """This token came."""


class ConstrainedRun:
    """A request under way, as a chain of runs of one token each."""

    def __init__(self, target: Target, request: Request, constraint: Constraint) -> None:
        self._target = target
        self._request = request
        self._constraint = constraint
        self._aborted = False
        self._made: list[int] = []
        self._run = self._next()
        self.start_ns = 0 if self._run is None else self._run.start_ns
        self.finish = Finish.STOP if self._run is None else None

    def __iter__(self) -> Iterator[list[Token]]:
        while self._run is not None:
            for batch in self._run:
                yield from self._take(batch)
            self.start_ns = self.start_ns or self._run.start_ns
            self.finish = self._ended(self._run)
            self._run = None if self.finish else self._next()
            if self._run is None:
                self.finish = self.finish or Finish.STOP

    def abort(self) -> None:
        self._aborted = True
        if (run := self._run) is not None:
            run.abort()

    @property
    def steps(self) -> int:
        run = self._run
        return len(self._made) + (0 if run is None else run.steps)

    def _take(self, batch: list[Token]) -> Iterator[list[Token]]:
        for token in batch:
            self._made.append(token.id)
            if token.id not in self._request.stop_tokens:
                self._constraint.accept(token.id)
        yield batch

    def _ended(self, run: Run) -> Finish | None:
        """Why the whole ends with this run; None where it goes on."""
        if run.finish in (Finish.STOP, Finish.ABORT):
            return run.finish
        if len(self._made) == self._request.max_tokens:
            return Finish.LENGTH
        return Finish.ABORT if self._aborted else None

    def _next(self) -> Run | None:
        allowed = self._constraint.allowed()
        if not allowed.any():
            return None
        request = self._request
        tokens = [*request.tokens, *self._made]
        run = self._target.run(
            replace(
                request,
                tokens=tokens,
                cached=len(tokens) - 1 if self._made else request.cached,
                max_tokens=1,
                sampling=masked(request.sampling, allowed, Counter(self._made)),
            )
        )
        if self._aborted:  # between two runs
            run.abort()
        return run


def masked(sampling: Sampling, allowed: NDArray[np.bool_], counts: Counter[int]) -> Sampling:
    """The same way to choose among the allowed tokens. ``counts``: the answer so far, which the target takes for a
    part of the prompt; the penalties that tell the two apart become biases, to the last bit."""
    inside = 2 * int(allowed.sum()) < len(allowed)  # name the fewer: those that are in, or those that are out
    named = np.flatnonzero(allowed if inside else ~allowed).tolist()
    biases = dict.fromkeys(named, OUT_OF_REACH if inside else -OUT_OF_REACH)
    if sampling.presence or sampling.frequency:
        for token, count in counts.items():
            penalty = (sampling.presence + count * sampling.frequency) / 2**LOGIT_BITS
            biases[token] = biases.get(token, 0.0) - penalty
    for token, value in sampling.logit_bias:
        biases[token] = biases.get(token, 0.0) + value
    return replace(sampling, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=tuple(biases.items()))
