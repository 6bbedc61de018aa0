"""How decode time grows with the context, beside the time that reading the longer cache takes at the read ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from monolane.bench import timing
from monolane.bench.decode import Say
from monolane.bench.subject import Subject
from monolane.bench.surroundings import Surroundings
from monolane.errors import UsageError
from monolane.model.config import ModelConfig

GPU_TOKENS, CPU_TOKENS = 128, 16  # decoded at each context

METHOD = (
    "one prompt that fills the cache step by step; at each context, rounds that measure ceiling, then decode n tokens "
    "as (T(n) - T(1)) / (n - 1) by the host's clock, everything before the last prompt token cached (a context of 0: a "
    "prompt of one token); medians of the rounds; growth is over the shortest context, ideal_growth_us the bytes of "
    "cache read more / ceiling; fraction_of_ceiling counts weights and cache"
)


def measure(
    subject: Subject, around: Surroundings, lengths: Sequence[int], tokens: int, rounds: int, say: Say
) -> dict[str, Any]:
    """Decode time with so many tokens in the cache, from the fewest to the most."""
    target, config = subject.target, subject.model.config
    prompt = subject.prompt(max(1, *lengths))
    points: list[dict[str, float]] = []
    ceilings: list[float] = []
    for filled, length in zip([0, *lengths], lengths, strict=False):
        asked = prompt[: max(1, length)]
        fill_s = timing.ask(target, asked, 1, filled).seconds
        timed = []
        for _ in range(rounds):
            ceilings.append(max(around.ceiling().values()))
            timed.append(timing.decode(target, asked, tokens, len(asked) - 1))
        points.append(
            {
                "context": length,
                "us_per_token": median(found.us_per_token for found in timed),
                "us_per_token_device": median(found.us_per_token_device for found in timed),
                "cache_bytes_per_token": cache_bytes(config, length),
                "fill_s": fill_s,
            }
        )
        say(f"context {length:,}: {points[-1]['us_per_token']:,.1f} µs/token, filled in {fill_s:.1f} s")
    best = median(ceilings)
    for point in points:
        more = point["cache_bytes_per_token"] - points[0]["cache_bytes_per_token"]
        read = target.bytes_per_token + point["cache_bytes_per_token"]
        point["growth_us"] = point["us_per_token"] - points[0]["us_per_token"]
        point["ideal_growth_us"] = more / best * 1e6
        point["fraction_of_ceiling"] = read / point["us_per_token"] * 1e6 / best
    return {
        "benchmark": "context",
        "model": subject.name,
        "dtype": "bf16",
        "device": target.name,
        "context": target.context,
        "tokens": tokens,
        "bytes_per_token": target.bytes_per_token,
        "ceiling_bytes_per_s": best,
        "points": points,
        "method": METHOD,
    }


def cache_bytes(config: ModelConfig, length: int) -> int:
    """Keys and values, in bf16, that all layers read for a token with so many before it."""
    positions = sum(length if window is None else min(window, length) for window in config.windows)
    return positions * config.kv_size * 2 * 2


def check(lengths: Sequence[int], tokens: int, config: ModelConfig) -> None:
    """Refuse what a model cannot hold, before minutes are spent on the rest."""
    limit = config.context - tokens
    for length in lengths:
        if length > limit:
            raise UsageError(
                f"A context of {length} tokens cannot be measured.",
                f"The model was made for {config.context}; choose contexts of at most {limit}.",
            )
