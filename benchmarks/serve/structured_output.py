"""The price of structured output: the same model, the same number of tokens, free and under a constraint.

Every round asks once under each constraint, one after the other; ratios are formed within a round. No constraint lets
an answer end before it has all its tokens. ``words`` allows nearly all tokens, ``numbers`` a few in a thousand,
``one letter`` a handful.
"""

from __future__ import annotations

import statistics
from typing import Any

from model_server import ModelServer

LONG = 10_000  # items or letters: more than tokens are asked for


def _schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": fields}}}


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "free": {"ignore_eos": True},
    "json_object": {"response_format": {"type": "json_object"}},
    "numbers": _schema(type="array", minItems=LONG, items={"type": "integer", "minimum": 0, "maximum": 999}),
    "words": _schema(type="string", minLength=LONG),
    "one letter": _schema(type="string", pattern=f"^a{{{LONG}}}$"),
}
ASKED = [{"role": "user", "content": "Write a long JSON object about a garden: twenty keys, each with a long text."}]


def measure(server: ModelServer, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians by constraint: tokens per answer, tokens per second, and that as a share of the free answer's."""
    _round(server, tokens)  # warms caches, and compiles the grammars
    found = [_round(server, tokens) for _ in range(rounds)]
    return {name: _summary([each[name] for each in found], [each["free"] for each in found]) for name in CONSTRAINTS}


def _round(server: ModelServer, tokens: int) -> dict[str, dict[str, float]]:
    return {
        name: server.chat(messages=ASKED, max_tokens=tokens, **fields)["timings"]
        for name, fields in CONSTRAINTS.items()
    }


def _summary(timings: list[dict[str, float]], free: list[dict[str, float]]) -> dict[str, float]:
    speeds = [each["tokens_per_second"] for each in timings]
    return {
        "tokens": statistics.median(each["generated_tokens"] for each in timings),
        "tokens_per_second": statistics.median(speeds),
        "of_free": statistics.median(
            speed / other["tokens_per_second"] for speed, other in zip(speeds, free, strict=True)
        ),
    }
