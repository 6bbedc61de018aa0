"""What comes back: pieces while the model writes, and the whole with its timings at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from monolane.target.base import Token

FinishReason = Literal["stop", "length", "abort"]

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot write


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, and the likeliest tokens in its place, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int = 0  # characters of the answer before it

    @classmethod
    def of(cls, token: Token, offset: int = 0) -> TokenLogprob:
        top = token.top
        if top and not top[-1][1] > LOWEST_LOGPROB:  # best first, so the others are fine where the last one is
            top = tuple((other, _finite(value)) for other, value in top)
        return cls(token.id, LOWEST_LOGPROB if token.logprob is None else _finite(token.logprob), top, offset)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB  # what is no number is not above it either


@dataclass(frozen=True)
class Delta:
    """A piece of an answer, as much as was ready. Text lags behind the tokens while a character is incomplete or
    a stop string may have begun; either may be empty, not both."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Timings:
    """How fast it was, by the target's own clock. Speeds leave the first token out: it waits for the prompt."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt; still in a cache from an earlier request, and not computed again
    generated_tokens: int
    queue_s: float  # waited for earlier requests
    first_token_s: float | None  # from taking the request up to the first token; None where none came
    decode_us_per_token: float | None  # over the tokens after the first; None where there are fewer than two
    tokens_per_second: float | None  # the same as a rate
    bytes_per_token: int  # weights read for each decoded token

    @classmethod
    def measure(
        cls,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        queue_s: float,
        start_ns: int,
        times_ns: Sequence[int],
        bytes_per_token: int,
    ) -> Timings:
        """From the times at which the tokens were sampled."""
        count = len(times_ns)
        decode_us = (times_ns[-1] - times_ns[0]) / (count - 1) / 1e3 if count >= 2 else None
        return cls(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            generated_tokens=count,
            queue_s=queue_s,
            first_token_s=(times_ns[0] - start_ns) / 1e9 if count else None,
            decode_us_per_token=decode_us,
            tokens_per_second=1e6 / decode_us if decode_us else None,
            bytes_per_token=bytes_per_token,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Completion:
    """An answer. ``token_ids`` are the tokens of the answer without the stop token that ended it; where a stop
    string ended it (``stop_string``), they include the tokens that spelled it, while ``text`` ends before it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None
    seed: int
    timings: Timings
    stop_string: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; ``logprobs`` only where they were asked for."""
        plain = asdict(self)
        if self.logprobs is None:
            del plain["logprobs"]
        return plain
