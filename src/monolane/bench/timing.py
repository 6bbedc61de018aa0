"""Time per decoded token by two clocks that know nothing of each other: the caller's, and the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from monolane.program.sample import Sampling
from monolane.target.base import Request, Target, Token


@dataclass(frozen=True)
class Answer:
    """One greedy request."""

    tokens: list[Token]
    seconds: float  # by the caller's clock, from the asking to the end
    start_ns: int  # by the target's clock, when it took the request up

    @property
    def first_ms(self) -> float:
        """To the first token, by the target's clock."""
        return (self.tokens[0].time_ns - self.start_ns) / 1e6

    @property
    def gaps_us(self) -> NDArray[np.float64]:
        """Between tokens, by the target's clock."""
        return np.diff([token.time_ns for token in self.tokens]) / 1e3


@dataclass(frozen=True)
class Decode:
    """The same request twice: for one token, and for many."""

    short: Answer
    long: Answer

    @property
    def us_per_token(self) -> float:
        """(T(n) - T(1)) / (n - 1) by the caller's clock: prompt, launch and ending are in both, and cancel."""
        return (self.long.seconds - self.short.seconds) / (len(self.long.tokens) - 1) * 1e6

    @property
    def us_per_token_device(self) -> float:
        """(time of the last token - time of the first) / (n - 1) by the target's clock."""
        return float(self.long.gaps_us.mean())


def ask(target: Target, prompt: Sequence[int], tokens: int, cached: int = 0) -> Answer:
    """A greedy answer of so many tokens; the first ``cached`` of the prompt are in the target's cache."""
    began = perf_counter()
    run = target.run(Request(prompt, cached, tokens, frozenset(), Sampling()))
    made = [token for batch in run for token in batch]
    seconds = perf_counter() - began
    if len(made) != tokens:
        raise RuntimeError(f"{len(made)} tokens were made, not {tokens}")
    return Answer(made, seconds, run.start_ns)


def decode(target: Target, prompt: Sequence[int], tokens: int, cached: int = 0) -> Decode:
    """One fresh measurement."""
    return Decode(ask(target, prompt, 1, cached), ask(target, prompt, tokens, cached))
