"""The results of a request: pieces while it is generated, and the whole answer with its timings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from monolane.target.base import Token

FinishReason = Literal["stop", "length", "abort"]

LOWEST_LOGPROB = -9999.0  # instead of minus infinity, which JSON cannot represent


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, and the likeliest tokens at its position, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int = 0  # where the token begins, in characters of the answer

    @classmethod
    def of(cls, token: Token, offset: int = 0) -> TokenLogprob:
        top = token.top
        if top and not top[-1][1] > LOWEST_LOGPROB:  # best first: where the last one is finite, all are
            top = tuple((other, _finite(value)) for other, value in top)
        return cls(token.id, LOWEST_LOGPROB if token.logprob is None else _finite(token.logprob), top, offset)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB  # NaN becomes LOWEST_LOGPROB too


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: all tokens that were ready, and the text that is certain. Text is held back while a
    character is incomplete or a stop string may have begun, so either may be empty, but not both."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class Timings:
    """The times of a request, by the target's own clock. Speeds leave the first token out: it includes prefill."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in a KV cache and not computed again
    generated_tokens: int
    queue_s: float  # waiting for earlier requests
    first_token_s: float | None  # from the start on the target to the first token; None without one
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
        """The timings of a request from the times at which its tokens were sampled."""
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
    """An answer. ``token_ids`` do not include the stop token that ended it. Where a stop string ended it
    (``stop_string``), they do include the tokens of that string, while ``text`` ends before it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None
    seed: int
    timings: Timings
    stop_string: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data for JSON; ``logprobs`` only where the request asked for them."""
        plain = asdict(self)
        if self.logprobs is None:
            del plain["logprobs"]
        return plain
