"""The response formats of Ollama's /api/chat and /api/generate: one JSON object per line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from monolane.engine.result import Completion, Delta
from monolane.serve.answering import to_json
from monolane.serve.failures import HttpError
from monolane.serve.thinking import ThinkingParser
from monolane.serve.tool_parser import Call, Part, ToolParser


@dataclass(frozen=True)
class Clock:
    """When a request came, and how long it waited for its model; seconds."""

    began_s: float
    loaded_s: float

    @classmethod
    def since(cls, began_s: float) -> Clock:
        return cls(began_s, time.perf_counter() - began_s)


class OllamaDialect:
    """Writes one answer. ``thinking``: what splits the model's thoughts off; None: they stay in the text."""

    media_type = "application/x-ndjson"

    def __init__(
        self, model: str, is_chat: bool, clock: Clock, parser: ToolParser, thinking: ThinkingParser | None
    ) -> None:
        self._model, self._is_chat, self._clock = model, is_chat, clock
        self._parser, self._thinking = parser, thinking

    def comment(self, text: str) -> str:  # NDJSON has none
        return ""

    def begin(self) -> Iterator[str]:
        return iter(())

    def piece(self, delta: Delta) -> Iterator[str]:
        thought, said = self._thinking.push(delta.text) if self._thinking else ("", delta.text)
        yield from self._parts(thought, self._parser.push(said))

    def end(self, result: Completion) -> Iterator[str]:
        thought, said = self._thinking.flush() if self._thinking else ("", "")
        yield from self._parts(thought, [*self._parser.push(said), *self._parser.flush(_is_cut(result))])
        yield _line(self._body("", "", []) | self._end(result))

    def failure(self, error: HttpError) -> Iterator[str]:
        yield _line({"error": error.message})

    def whole(self, result: Completion) -> dict[str, Any]:
        thought, said = "", result.text
        if self._thinking:
            thought, said = map("".join, zip(self._thinking.push(said), self._thinking.flush(), strict=True))
        parts = [*self._parser.push(said), *self._parser.flush(_is_cut(result))]
        text = "".join(part for part in parts if isinstance(part, str))
        calls = [part for part in parts if isinstance(part, Call)]
        return self._body(text, thought, calls) | self._end(result)

    def loaded(self, reason: str) -> dict[str, Any]:
        """The answer to a request that has nothing to answer: the model is loaded, or unloaded."""
        return self._body("", "", []) | {"done": True, "done_reason": reason}

    def _parts(self, thought: str, parts: Sequence[Part]) -> Iterator[str]:
        if thought:
            yield _line(self._body("", thought, []))
        for part in parts:
            yield _line(self._body("", "", [part]) if isinstance(part, Call) else self._body(part, "", []))

    def _body(self, text: str, thought: str, calls: Sequence[Call]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "created_at": _now()}
        more = {"thinking": thought} if thought else {}
        if not self._is_chat:
            return body | {"response": text, "done": False} | more
        message: dict[str, Any] = {"role": "assistant", "content": text} | more
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return body | {"message": message, "done": False}

    def _end(self, result: Completion) -> dict[str, Any]:
        """How it ended, and its times in nanoseconds: in all, to load the model, to the first token, after it."""
        timings = result.timings
        decoded_us = (timings.decode_us_per_token or 0.0) * max(0, timings.generated_tokens - 1)
        return {
            "done": True,
            "done_reason": "length" if _is_cut(result) else "stop",
            "total_duration": round(1e9 * (time.perf_counter() - self._clock.began_s)),
            "load_duration": round(1e9 * self._clock.loaded_s),
            "prompt_eval_count": result.prompt_tokens,
            "prompt_eval_duration": round(1e9 * (timings.first_token_s or 0.0)),
            "eval_count": timings.generated_tokens,
            "eval_duration": round(1e3 * decoded_us),
        }


def _is_cut(result: Completion) -> bool:
    return result.finish_reason == "length"


def _call(call: Call) -> dict[str, Any]:
    """Ollama's arguments are an object, and not its JSON."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = {}
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments}}


def _line(body: dict[str, Any]) -> str:
    return to_json(body) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
