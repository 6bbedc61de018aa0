"""How decode time grows with the context, beside the time that reading the longer cache takes at the read ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from monolane.bench import timing
from monolane.bench.decode_gpu import Ceiling, Say, random_prompt
from monolane.model.config import ModelConfig
from monolane.target.base import Target

TOKENS = 128  # decoded at each context
ALLOWED = 1.3  # growth over the time of reading the cache

METHOD = (
    "one random prompt that fills the cache step by step; at each context, rounds that measure ceiling, then decode "
    f"{TOKENS} tokens as (T(n) - T(1)) / (n - 1) by the host's clock, everything before the last prompt token cached; "
    "medians of the rounds; growth is over the shortest context, ideal_growth_us the bytes of cache read more / ceiling"
)


def measure(
    model: str,
    config: ModelConfig,
    target: Target,
    ceiling: Ceiling,
    contexts: Sequence[int],
    rounds: int,
    say: Say,
) -> dict[str, Any]:
    """Decode time with so many tokens in the cache, from the fewest to the most."""
    contexts = sorted(set(contexts))
    prompt = random_prompt(config.vocab, contexts[-1])
    points: list[dict[str, float]] = []
    ceilings: list[float] = []
    for filled, length in zip([0, *contexts], contexts, strict=False):
        filling = timing.ask(target, prompt[:length], 1, filled)
        timed = []
        for _ in range(rounds):
            ceilings.append(max(ceiling().values()))
            timed.append(timing.decode(target, prompt[:length], TOKENS, length - 1))
        points.append(
            {
                "context": length,
                "us_per_token": median(found.us_per_token for found in timed),
                "us_per_token_device": median(found.us_per_token_device for found in timed),
                "cache_bytes_per_token": cache_bytes(config, length),
                "fill_s": filling.seconds,
            }
        )
        say(f"context {length}: {points[-1]['us_per_token']:.1f} µs/token, filled in {filling.seconds:.1f} s")
    best = median(ceilings)
    for point in points:
        more = point["cache_bytes_per_token"] - points[0]["cache_bytes_per_token"]
        point["growth_us"] = point["us_per_token"] - points[0]["us_per_token"]
        point["ideal_growth_us"] = more / best * 1e6
    return {
        "benchmark": "context",
        "model": model,
        "dtype": "bf16",
        "device": target.name,
        "context": target.context,
        "bytes_per_token": target.bytes_per_token,
        "ceiling_bytes_per_s": best,
        "allowed_growth": ALLOWED,
        "points": points,
        "method": METHOD,
    }


def cache_bytes(config: ModelConfig, length: int) -> int:
    """Keys and values, in bf16, that all layers read for a token with so many before it."""
    positions = sum(length if window is None else min(window, length) for window in config.windows)
    return positions * config.kv_size * 2 * 2
