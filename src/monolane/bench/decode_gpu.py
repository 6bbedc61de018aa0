"""Decode speed on a GPU: rounds that measure the read ceiling, ours, the peers, and the ceiling again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from monolane.bench import timing
from monolane.target.base import Target

PROMPT_TOKENS, LONG_PROMPT_TOKENS, TOKENS = 128, 1024, 512
Ceiling = Callable[[], dict[str, float]]  # way to read -> bytes per second
Peer = Callable[[], float]  # microseconds per token, for the same lengths
Say = Callable[[str], None]

METHOD = (
    f"batch 1, greedy, made-up weights, a prompt of {PROMPT_TOKENS} tokens, an answer of {TOKENS}; rounds that measure "
    "ceiling, ours, peers, ceiling; fractions formed within a round, medians of the rounds; "
    "us_per_token: (T(n) - T(1)) / (n - 1) by the host's clock; "
    "us_per_token_device: (time of last token - time of first) / (n - 1) by the device's clock; "
    "first token: by the host's clock, from asking to the end of a request for one token, and by the device's; "
    "ceiling: the best of 16-byte loads and bulk copies of 16 KiB by one block per multiprocessor, device clock"
)


def random_prompt(vocab: int, tokens: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab, tokens)]


@dataclass
class Rounds:
    """What all rounds have found so far."""

    rows: list[dict[str, float]] = field(default_factory=list)
    ways: list[dict[str, float]] = field(default_factory=list)
    decodes: list[timing.Decode] = field(default_factory=list)

    def median(self, name: str) -> float:
        return median(row[name] for row in self.rows)


def measure(
    model: str, vocab: int, target: Target, ceiling: Ceiling, peers: Mapping[str, Peer], rounds: int, say: Say
) -> dict[str, Any]:
    """What was measured of one model; who and where is added by whoever writes it down."""
    prompts = [random_prompt(vocab, length) for length in (PROMPT_TOKENS, LONG_PROMPT_TOKENS)]
    ceiling()  # clocks are up, everything is loaded
    timing.ask(target, prompts[0], TOKENS)
    found = Rounds()
    for number in range(rounds):
        _round(found, prompts, target, ceiling, peers)
        row = found.rows[-1]
        say(f"round {number + 1}/{rounds}: {row['us_per_token']:.1f} µs/token, {row['fraction']:.1%} of the ceiling")
    return _result(model, target, found, peers)


def _round(
    found: Rounds, prompts: list[list[int]], target: Target, ceiling: Ceiling, peers: Mapping[str, Peer]
) -> None:
    before = ceiling()
    ours = timing.decode(target, prompts[0], TOKENS)
    row = {"us_per_token": ours.us_per_token, "us_per_token_device": ours.us_per_token_device}
    row |= _first(f"first_token_{PROMPT_TOKENS}", ours.short)
    row |= _first(f"first_token_{LONG_PROMPT_TOKENS}", timing.ask(target, prompts[1], 1))
    row |= {name: decode_us() for name, decode_us in peers.items()}
    after = ceiling()
    row["ceiling"] = (max(before.values()) + max(after.values())) / 2
    row["fraction"] = target.bytes_per_token / row["us_per_token"] * 1e6 / row["ceiling"]
    found.rows.append(row)
    found.ways += [before, after]
    found.decodes.append(ours)


def _result(model: str, target: Target, found: Rounds, peers: Iterable[str]) -> dict[str, Any]:
    answers = {tuple(token.id for token in decode.long.tokens) for decode in found.decodes}
    return {
        "benchmark": "decode",
        "model": model,
        "dtype": "bf16",
        "device": target.name,
        "context": target.context,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens": TOKENS,
        "us_per_token": found.median("us_per_token"),
        "us_per_token_device": found.median("us_per_token_device"),
        "tokens_per_second": 1e6 / found.median("us_per_token"),
        "token_gaps_us": _percentiles(found.decodes),
        "first_token_ms": {
            str(length): {clock: found.median(f"first_token_{length}_{clock}_ms") for clock in ("host", "device")}
            for length in (PROMPT_TOKENS, LONG_PROMPT_TOKENS)
        },
        "bytes_per_token": target.bytes_per_token,
        "ceiling_bytes_per_s": found.median("ceiling"),
        "ceiling_ways": {way: median(speeds[way] for speeds in found.ways) for way in found.ways[0]},
        "fraction_of_ceiling": found.median("fraction"),
        "peers": {
            name: {
                "us_per_token": found.median(name),
                "ours_is_faster_by": median(row[name] / row["us_per_token"] for row in found.rows),
            }
            for name in peers
        },
        "same_tokens_in_all_rounds": len(answers) == 1,
        "method": METHOD,
        "rounds": found.rows,
    }


def _first(name: str, answer: timing.Answer) -> dict[str, float]:
    return {f"{name}_host_ms": answer.seconds * 1e3, f"{name}_device_ms": answer.first_ms}


def _percentiles(decodes: list[timing.Decode]) -> dict[str, float]:
    """Of the time between two tokens, over all rounds."""
    gaps = np.concatenate([found.long.gaps_us for found in decodes])
    shares = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: float(np.percentile(gaps, share)) for name, share in shares.items()}
