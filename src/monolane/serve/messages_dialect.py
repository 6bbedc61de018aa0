"""The response format of /v1/messages: content blocks that start, grow and stop."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from monolane.engine.answer import Answer
from monolane.engine.result import Completion, Delta
from monolane.serve.answering import ServerSentEvents, event
from monolane.serve.failures import HttpError
from monolane.serve.tool_parser import Call, Part, ToolParser, parse_json


class MessagesDialect(ServerSentEvents):
    """Writes one answer."""

    def __init__(self, model: str, answer: Answer, parser: ToolParser) -> None:
        self._model = model
        self._answer = answer
        self._parser = parser
        self._id = f"msg_{uuid.uuid4().hex}"
        self._index = 0  # of the block that is open or comes next
        self._is_open = False
        self._called = False

    def begin(self) -> Iterator[str]:
        answer = self._answer
        start = self._message([], None, None, _usage(answer.prompt_tokens, answer.cached_tokens, 0))
        yield _event("message_start", message=start)
        yield _event("ping")

    def piece(self, delta: Delta) -> Iterator[str]:
        yield from self._parts(self._parser.push(delta.text))

    def end(self, result: Completion) -> Iterator[str]:
        yield from self._parts(self._parser.flush(result.finish_reason == "length"))
        yield from self._close()
        reason, stop = self._reason(result)
        ended = {"stop_reason": reason, "stop_sequence": stop}
        yield _event("message_delta", delta=ended, usage=_usage_of(result), timings=result.timings.to_dict())
        yield _event("message_stop")

    def failure(self, error: HttpError) -> Iterator[str]:
        yield event(error.anthropic_body(), "error")

    def whole(self, result: Completion) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        for part in [*self._parser.push(result.text), *self._parser.flush(result.finish_reason == "length")]:
            if isinstance(part, Call):
                self._called = True
                blocks.append(_tool_use(part, parse_json(part.arguments) or {}))
            elif blocks and blocks[-1]["type"] == "text":
                blocks[-1]["text"] += part
            else:
                blocks.append({"type": "text", "text": part})
        reason, stop = self._reason(result)
        return self._message(blocks, reason, stop, _usage_of(result)) | {"timings": result.timings.to_dict()}

    def _parts(self, parts: Sequence[Part]) -> Iterator[str]:
        for part in parts:
            if isinstance(part, Call):
                yield from self._close()
                self._called = True
                yield from self._open(_tool_use(part, {}))
                yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})
                yield from self._close()
            else:
                if not self._is_open:
                    yield from self._open({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": part})

    def _open(self, block: dict[str, Any]) -> Iterator[str]:
        self._is_open = True
        yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._is_open:
            self._is_open = False
            yield _event("content_block_stop", index=self._index)
            self._index += 1

    def _reason(self, result: Completion) -> tuple[str, str | None]:
        """The stop reason, and the stop sequence where one ended the answer."""
        if result.finish_reason == "length":
            return "max_tokens", None
        if result.stop_string is not None:
            return "stop_sequence", result.stop_string
        return "tool_use" if self._called else "end_turn", None

    def _message(
        self, blocks: list[dict[str, Any]], reason: str | None, stop: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }


def _tool_use(call: Call, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _usage_of(result: Completion) -> dict[str, Any]:
    return _usage(result.prompt_tokens, result.timings.cached_tokens, len(result.token_ids))


def _usage(prompt_tokens: int, cached_tokens: int, made: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": made,
    }


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)
