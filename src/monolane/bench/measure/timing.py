"""Time per decoded token by two independent clocks: the caller's, and the target's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError, UsageError
from monolane.program.sample import Sampling
from monolane.target.base import Request, Target, Token

Result = TypeVar("Result")
GREEDY = Sampling()
MOST_APART = 0.10  # of the median, between the fastest and the slowest round
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def difference_us(one_s: float, many_s: float, tokens: int) -> float:
    """(T(n) - T(1)) / (n - 1): the time that both requests need for prompt, launch, ending and network cancels."""
    if many_s <= one_s:
        raise UsageError(
            f"{tokens} tokens took no longer than one: the machine is too busy, or the answer too short.",
            "Ask for more with --tokens, on a machine that does nothing else.",
        )
    return (many_s - one_s) / (tokens - 1) * 1e6


def disagreement(rounds: Sequence[float]) -> str | None:
    """A warning where the same measurement gave results that differ too much to be trusted; else None."""
    if len(rounds) < 2 or max(rounds) - min(rounds) <= MOST_APART * median(rounds):
        return None
    apart = (max(rounds) - min(rounds)) / median(rounds)
    return (
        f"the rounds differ by {apart:.0%} ({min(rounds):,.1f} to {max(rounds):,.1f} µs/token): "
        "something else used the machine. Measure again when it is idle."
    )


def percentiles(gaps_us: Iterable[NDArray[np.float64]]) -> dict[str, float]:
    """Percentiles of the time between two tokens, over several answers."""
    gaps = np.concatenate(list(gaps_us))
    return {name: float(np.percentile(gaps, percent)) for name, percent in PERCENTILES.items()}


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result of ``work``, and the seconds it took by the caller's clock."""
    began = perf_counter()
    result = work()
    return result, perf_counter() - began


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    tokens: list[Token]
    seconds: float  # by the caller's clock, from the request to the end of the answer
    start_ns: int  # by the target's clock, when it began with the request

    @property
    def first_ms(self) -> float:
        """The time to the first token, by the target's clock."""
        return (self.tokens[0].time_ns - self.start_ns) / 1e6

    @property
    def gaps_us(self) -> NDArray[np.float64]:
        """The times between successive tokens, by the target's clock."""
        return np.diff([token.time_ns for token in self.tokens]) / 1e3


@dataclass(frozen=True)
class Decode:
    """The answers to the same request for one token, and for many."""

    short: Answer
    long: Answer

    @property
    def us_per_token(self) -> float:
        """By the caller's clock."""
        return difference_us(self.short.seconds, self.long.seconds, len(self.long.tokens))

    @property
    def us_per_token_device(self) -> float:
        """(time of the last token - time of the first) / (n - 1) by the target's clock."""
        return float(self.long.gaps_us.mean())


def fixed_length(
    prompt: Sequence[int], tokens: int, cached: int = 0, sampling: Sampling = GREEDY, logprobs: int | None = None
) -> Request:
    """A request for exactly ``tokens`` tokens: no stop token ends it. The first ``cached`` tokens of the prompt are in
    the target's KV cache."""
    return Request(prompt, cached, tokens, frozenset(), sampling, logprobs)


def ask(target: Target, request: Request) -> Answer:
    """Run a request of fixed length."""

    def work() -> tuple[list[Token], int]:
        run = target.run(request)
        return [token for batch in run for token in batch], run.start_ns

    (made, start_ns), seconds = timed(work)
    if len(made) != request.max_tokens:
        raise TargetError(f"{len(made)} tokens were made, not {request.max_tokens}.")
    return Answer(made, seconds, start_ns)


def decode(target: Target, request: Request) -> Decode:
    """Run a request of fixed length twice: for its first token, and for all of them."""
    return Decode(ask(target, replace(request, max_tokens=1)), ask(target, request))
