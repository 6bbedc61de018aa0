"""Measures decode time by context length, and compares its growth with the time to read the longer KV cache at the
read ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from monolane.bench.measure import timing
from monolane.bench.measure.decode import Say
from monolane.bench.measure.subject import Subject
from monolane.bench.measure.surroundings import Surroundings
from monolane.errors import UsageError
from monolane.model.config import ModelConfig

GPU_TOKENS, CPU_TOKENS = 128, 16  # decoded at each context

USUAL = (0, 1024, 4096, 8192, 16384, 32768)

METHOD = (
    "one prompt fills the cache once, up to the longest context; every round measures the ceiling, then decodes n "
    "tokens at every context: (T(n) - T(1)) / (n - 1) by the host's clock, with all of the prompt but its last token "
    "in the cache (a context of 0 is a prompt of one token; the decoded tokens overwrite what follows in the cache, "
    "which changes no time); growth_us: over the shortest context of the same round; medians of the rounds; "
    "ideal_growth_us: additional bytes of cache / ceiling; fraction_of_ceiling counts weights and cache"
)


def measure(
    subject: Subject, around: Surroundings, lengths: Sequence[int], tokens: int, rounds: int, say: Say
) -> dict[str, Any]:
    """Decode time with each of these numbers of tokens in the cache; ``lengths`` ascend."""
    target = subject.target
    prompt = subject.prompt(max(1, *lengths))
    fill_s = timing.ask(target, timing.fixed_length(prompt, 1)).seconds
    say(f"{len(prompt):,} tokens in the cache in {fill_s:.1f} s")
    ceilings: list[float] = []
    found: list[list[timing.Decode]] = []  # by round, then by context
    for number in range(rounds):
        ceilings.append(max(around.ceiling().values()))
        prefixes = [prompt[: max(1, length)] for length in lengths]
        requests = [timing.fixed_length(prefix, tokens, cached=len(prefix) - 1) for prefix in prefixes]
        found.append([timing.decode(target, request) for request in requests])
        told = ", ".join(f"{decode.us_per_token:,.1f}" for decode in found[-1])
        say(f"contexts, round {number + 1}/{rounds}: {told} µs/token")
    for place, length in enumerate(lengths):
        if (warning := timing.disagreement([decodes[place].us_per_token for decodes in found])) is not None:
            say(f"warning: context {length:,}: {warning}")
    ceiling = median(ceilings)
    return {
        "benchmark": "context",
        "model": subject.name,
        "dtype": subject.dtype,
        "device": target.name,
        "weights": "of the model" if subject.real else "made up",
        "context": target.context,
        "tokens": tokens,
        "bytes_per_token": target.bytes_per_token,
        "ceiling_bytes_per_s": ceiling,
        "fill_s": fill_s,
        "points": [_point(subject, found, place, lengths, ceiling) for place in range(len(lengths))],
        "method": METHOD,
    }


def _point(
    subject: Subject, found: Sequence[Sequence[timing.Decode]], place: int, lengths: Sequence[int], ceiling: float
) -> dict[str, float]:
    us = median(decodes[place].us_per_token for decodes in found)
    shortest, cache = (cache_bytes(subject.model.config, length) for length in (lengths[0], lengths[place]))
    return {
        "context": lengths[place],
        "us_per_token": us,
        "us_per_token_device": median(decodes[place].us_per_token_device for decodes in found),
        "cache_bytes_per_token": cache,
        "growth_us": median(decodes[place].us_per_token - decodes[0].us_per_token for decodes in found),
        "ideal_growth_us": (cache - shortest) / ceiling * 1e6,
        "fraction_of_ceiling": (subject.target.bytes_per_token + cache) / us * 1e6 / ceiling,
    }


def cache_bytes(config: ModelConfig, length: int) -> int:
    """Bytes of bf16 keys and values that all layers read for a token with ``length`` tokens before it."""
    positions = sum(length if window is None else min(window, length) for window in config.windows)
    return positions * config.kv_size * 2 * 2


def fitting(lengths: Sequence[int], tokens: int, config: ModelConfig) -> tuple[tuple[int, ...], dict[str, str]]:
    """The lengths that the model's context can hold, and for each other one the reason why it is left out."""
    fit = tuple(length for length in lengths if length + tokens <= config.context)
    why = f"the model was made for {config.context:,} tokens, and {tokens} are decoded"
    return fit, {str(length): why for length in lengths if length not in fit}


def check(lengths: Sequence[int], tokens: int, config: ModelConfig) -> None:
    """Refuse lengths that the model's context cannot hold, before minutes are spent on the others."""
    _, left_out = fitting(lengths, tokens, config)
    if left_out:
        raise UsageError(
            f"A context of {next(iter(left_out))} tokens cannot be measured.",
            f"The model was made for {config.context}; choose contexts of at most {config.context - tokens}.",
        )
