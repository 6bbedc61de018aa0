"""The price of a form: the same model, the same number of tokens, free and as a form says.

Every round asks in each form once, in turn; ratios are formed within a round. No form ends before the tokens do.
``words`` allows nearly all tokens, ``numbers`` a few in a thousand, ``one letter`` a handful.
"""

from __future__ import annotations

import statistics
from typing import Any

from model_server import ModelServer

LONG = 10_000  # items or letters: more than tokens are asked for


def _schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": fields}}}


FORMS: dict[str, dict[str, Any]] = {
    "free": {"ignore_eos": True},
    "json_object": {"response_format": {"type": "json_object"}},
    "numbers": _schema(type="array", minItems=LONG, items={"type": "integer", "minimum": 0, "maximum": 999}),
    "words": _schema(type="string", minLength=LONG),
    "one letter": _schema(type="string", pattern=f"^a{{{LONG}}}$"),
}
ASKED = [{"role": "user", "content": "Write a long JSON object about a garden: twenty keys, each with a long text."}]


def measure(server: ModelServer, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians by form: tokens per answer, tokens per second, and that as a share of the free answer's."""
    _round(server, tokens)  # warms caches, and compiles the forms
    found = [_round(server, tokens) for _ in range(rounds)]
    return {form: _summary([each[form] for each in found], [each["free"] for each in found]) for form in FORMS}


def _round(server: ModelServer, tokens: int) -> dict[str, dict[str, float]]:
    return {form: server.chat(messages=ASKED, max_tokens=tokens, **fields)["timings"] for form, fields in FORMS.items()}


def _summary(timings: list[dict[str, float]], free: list[dict[str, float]]) -> dict[str, float]:
    speeds = [each["tokens_per_second"] for each in timings]
    return {
        "tokens": statistics.median(each["generated_tokens"] for each in timings),
        "tokens_per_second": statistics.median(speeds),
        "of_free": statistics.median(
            speed / other["tokens_per_second"] for speed, other in zip(speeds, free, strict=True)
        ),
    }
