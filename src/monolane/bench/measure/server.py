"""Measures any OpenAI-compatible server as a client, with the same method: the difference of two requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from monolane.bench.measure import timing
from monolane.bench.measure.decode import Lengths, Say
from monolane.bench.measure.server_client import Client, Heard
from monolane.bench.report import record
from monolane.errors import UsageError

WORDS = ("stone", "river", "letter", "garden", "winter", "copper", "window", "mountain", "yellow", "paper", "engine")
PROBES = (1, 65)  # lengths in words of two prompts that show how many tokens a word has
LENGTHS = Lengths((128,), 256, 2)

METHOD = (
    "from outside, one streamed greedy request at a time, tokens counted by the server's own usage; per round: a "
    "prompt it has not seen (first_token_ms: to the first piece with text), then the same prompt for one token and for "
    "n, us_per_token: (T(n) - T(1)) / (n - 1) by the client's clock; throughput: fresh prompts one after another, "
    "tokens / wall; medians of the rounds; a context is filled by a prompt of about so many tokens"
)
NOT_JUDGED = "a server returns no logits, so the only check is whether the long answer begins with the one-token answer"


class _Prompts:
    """Makes prompts of about a given number of tokens. Each begins with another random number, so that no prefix of it
    is cached."""

    def __init__(self, client: Client) -> None:
        self._random = random.Random()
        self._least, more = (client.ask(self._text(words), 1).prompt_tokens for words in PROBES)
        self._per_word = max(more - self._least, 1) / (PROBES[1] - PROBES[0])

    def fresh(self, tokens: int) -> str:
        return self._text(1 + max(0, round((tokens - self._least) / self._per_word)))

    def _text(self, words: int) -> str:
        return " ".join([str(self._random.randrange(10**8)), *self._random.choices(WORDS, k=words - 1)])


def measure(
    url: str, api_key: str | None, model: str | None, lengths: Lengths, contexts: Sequence[int], rounds: int, say: Say
) -> dict[str, Any]:
    """The whole benchmark of one server."""
    client = Client(url, api_key, model)
    try:
        prompts = _Prompts(client)
        say(f"{client.url}: {client.model}, {client.way}")
        rows = []
        for number in range(rounds):
            rows.append(_round(client, prompts, lengths))
            said = f"{rows[-1]['us_per_token']:,.1f} µs/token, first token {rows[-1]['first_token_ms']:,.1f} ms"
            say(f"round {number + 1}/{rounds}: {said}")
        points = [_point(client, prompts, length, lengths.tokens, rounds, say) for length in contexts]
        return _result(client, lengths, rows, points)
    finally:
        client.close()


def _round(client: Client, prompts: _Prompts, lengths: Lengths) -> dict[str, float]:
    prompt = prompts.fresh(lengths.prompts[0])
    fresh = client.ask(prompt, 1)
    one, many = client.ask(prompt, 1), client.ask(prompt, lengths.tokens)
    queue = [prompts.fresh(lengths.prompts[0]) for _ in range(lengths.requests)]
    answers, wall_s = timing.timed(lambda: [client.ask(queued, lengths.tokens) for queued in queue])
    return {
        "us_per_token": _difference(client, one, many),
        "first_token_ms": fresh.first_s * 1e3,
        "prompt_tokens": fresh.prompt_tokens,
        "tokens": many.tokens,
        "tokens_per_piece": many.tokens / max(many.pieces, 1),
        "consistent": many.text.startswith(one.text),
        "throughput": sum(answer.tokens for answer in answers) / wall_s,
    }


def _point(client: Client, prompts: _Prompts, length: int, tokens: int, rounds: int, say: Say) -> dict[str, float]:
    prompt = prompts.fresh(max(length, 1))
    filling = client.ask(prompt, 1)
    found = [_difference(client, client.ask(prompt, 1), client.ask(prompt, tokens)) for _ in range(rounds)]
    say(f"context {filling.prompt_tokens:,}: {median(found):,.1f} µs/token")
    return {"context": filling.prompt_tokens, "us_per_token": median(found), "fill_s": filling.first_s}


def _difference(client: Client, one: Heard, many: Heard) -> float:
    """µs per token: the difference in time over the difference in tokens that the server really generated."""
    if many.tokens <= one.tokens:
        raise UsageError(
            f"{client.url} made {one.tokens} and {many.tokens} tokens: there is no difference to divide by.",
            "Ask for more with --tokens, or have the server go on past the end (ignore_eos).",
        )
    return timing.difference_us(one.seconds, many.seconds, many.tokens - one.tokens + 1)


def _result(
    client: Client, lengths: Lengths, rows: list[dict[str, float]], points: list[dict[str, float]]
) -> dict[str, Any]:
    def middle(name: str) -> float:
        return median(row[name] for row in rows)

    return {
        "benchmark": "server",
        "model": client.model,
        "dtype": None,
        "device": f"server at {client.url}, {client.way}",
        "context": None,
        "accuracy": {
            "verdict": "not judged",
            "why": NOT_JUDGED,
            "consistent": all(bool(row["consistent"]) for row in rows),
        },
        "prompt_tokens": middle("prompt_tokens"),
        "tokens": middle("tokens"),
        "us_per_token": middle("us_per_token"),
        "tokens_per_second": 1e6 / middle("us_per_token"),
        "first_token_ms": {str(lengths.prompts[0]): {"host": middle("first_token_ms")}},
        "throughput": {"requests": lengths.requests, "tokens_per_second": middle("throughput")},
        "bytes_per_token": None,
        "ceiling_bytes_per_s": None,
        "fraction_of_ceiling": None,
        "peers": {},
        "points": points,
        "method": METHOD,
        "rounds": rows,
        "machine": record.machine(),
        "versions": record.versions(),
    }
