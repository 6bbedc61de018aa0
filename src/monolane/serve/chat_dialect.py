"""The response format of /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw

from monolane.engine.answer import Answer
from monolane.engine.result import Completion, Delta, TokenLogprob
from monolane.serve.answering import ServerSentEvents, event
from monolane.serve.failures import HttpError
from monolane.serve.protocol import StreamOptions, usage, usage_so_far
from monolane.serve.thinking import ThinkingParser
from monolane.serve.token_json import TokenJson
from monolane.serve.tool_parser import Call, Part, ToolParser

DONE = "data: [DONE]\n\n"


class ChatDialect(ServerSentEvents):
    """Writes one answer. All its bodies carry the same id, time and model. ``thinking``: what the model thinks goes
    to a field of its own; without it, it is part of the text."""

    def __init__(
        self,
        model: str,
        token_json: TokenJson,
        answer: Answer,
        parser: ToolParser,
        options: StreamOptions,
        thinking: ThinkingParser | None = None,
    ) -> None:
        self._answer = answer
        self._thinking = thinking
        self._token_json = token_json
        self._parser = parser
        self._options = options
        self._calls = 0
        self._made = 0
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def begin(self) -> Iterator[str]:
        yield self._event({"role": "assistant", "content": ""})

    def piece(self, delta: Delta) -> Iterator[str]:
        self._made += len(delta.token_ids)
        thought, said = self._thinking.push(delta.text) if self._thinking else ("", delta.text)
        yield from self._parts(thought, self._parser.push(said), self._logprobs(delta.logprobs))

    def end(self, result: Completion) -> Iterator[str]:
        thought, said = self._thinking.flush() if self._thinking else ("", "")
        left = [*self._parser.push(said), *self._parser.flush(result.finish_reason == "length")]
        yield from self._parts(thought, left, None)
        yield self._event({}, finish=self._finish(result), timings=result.timings.to_dict())
        if self._options.include_usage:
            yield event(self._body("chat.completion.chunk", []) | {"usage": usage(result)})
        yield DONE

    def failure(self, error: HttpError) -> Iterator[str]:
        yield event(error.body())
        yield DONE

    def whole(self, result: Completion) -> dict[str, Any]:
        thought, said = "", result.text
        if self._thinking:
            thought, said = map("".join, zip(self._thinking.push(said), self._thinking.flush(), strict=True))
        parts = [*self._parser.push(said), *self._parser.flush(result.finish_reason == "length")]
        text = "".join(part for part in parts if isinstance(part, str))
        calls = [_call(part) for part in parts if isinstance(part, Call)]
        self._calls = len(calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text else text,
            "refusal": None,
        }
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(result.logprobs),
            "finish_reason": self._finish(result),
        }
        return self._body("chat.completion", [choice]) | {"usage": usage(result), "timings": result.timings.to_dict()}

    def _finish(self, result: Completion) -> str:
        return "tool_calls" if self._calls and result.finish_reason == "stop" else result.finish_reason

    def _parts(self, thought: str, parts: Sequence[Part], logprobs: Raw | None) -> Iterator[str]:
        """One event per part. Logprobs go with the first part; where no text can be shown yet, with an empty one."""
        if thought:
            yield self._event({"reasoning_content": thought}, logprobs)
            logprobs = None
        for part in parts or ([] if logprobs is None else [""]):
            if isinstance(part, Call):
                delta: dict[str, Any] = {"tool_calls": [{"index": self._calls} | _call(part)]}
                self._calls += 1
            else:
                delta = {"content": part}
            yield self._event(delta, logprobs)
            logprobs = None

    def _event(
        self,
        delta: dict[str, Any],
        logprobs: Raw | None = None,
        finish: str | None = None,
        timings: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        body = self._body("chat.completion.chunk", [choice])
        if self._options.continuous_usage_stats:
            answer = self._answer
            body["usage"] = usage_so_far(answer.prompt_tokens, self._made, answer.cached_tokens)
        if timings is not None:
            body["timings"] = timings
        return event(body)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": choices}

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> Raw | None:
        return None if logprobs is None else self._token_json.logprobs(logprobs)


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
