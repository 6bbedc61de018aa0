"""The response format of /v1/responses: output items that open, grow and close, each step a numbered event."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from monolane.engine.result import Completion, Delta
from monolane.serve.answering import ServerSentEvents, event
from monolane.serve.failures import HttpError
from monolane.serve.responses_request import ResponsesRequest
from monolane.serve.tool_parser import Call, Part, ToolParser


class ResponsesDialect(ServerSentEvents):
    """Writes one answer."""

    def __init__(self, model: str, request: ResponsesRequest, parser: ToolParser) -> None:
        self._parser = parser
        self._number = 0
        self._items: list[dict[str, Any]] = []  # complete ones
        self._text: str | None = None  # of the message that is open
        self._message_id = ""
        self._response = _frame(model, request)

    def begin(self) -> Iterator[str]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response)

    def piece(self, delta: Delta) -> Iterator[str]:
        yield from self._parts(self._parser.push(delta.text))

    def end(self, result: Completion) -> Iterator[str]:
        yield from self._parts(self._parser.flush(result.finish_reason == "length"))
        yield from self._close_message()
        body = self._complete(result)
        yield self._event(f"response.{body['status']}", response=body)

    def failure(self, error: HttpError) -> Iterator[str]:
        told = {"code": error.code or error.kind, "message": error.message}
        yield self._event("response.failed", response=self._response | {"status": "failed", "error": told})

    def whole(self, result: Completion) -> dict[str, Any]:
        for _ in self._parts([*self._parser.push(result.text), *self._parser.flush(result.finish_reason == "length")]):
            pass
        for _ in self._close_message():
            pass
        return self._complete(result)

    def _complete(self, result: Completion) -> dict[str, Any]:
        cut = result.finish_reason == "length"
        made, timings = len(result.token_ids), result.timings
        return self._response | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": {
                "input_tokens": result.prompt_tokens,
                "input_tokens_details": {"cached_tokens": timings.cached_tokens},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": result.prompt_tokens + made,
            },
            "timings": timings.to_dict(),
        }

    def _parts(self, parts: Sequence[Part]) -> Iterator[str]:
        for part in parts:
            if isinstance(part, Call):
                yield from self._close_message()
                yield from self._call(part)
                continue
            if self._text is None:
                yield from self._open_message()
            self._text = (self._text or "") + part
            yield self._event("response.output_text.delta", **self._place(), delta=part, logprobs=[])

    def _open_message(self) -> Iterator[str]:
        self._text, self._message_id = "", f"msg_{uuid.uuid4().hex}"
        yield self._item_event("added", self._message("in_progress", []))
        yield self._event("response.content_part.added", **self._place(), part=_text_part(""))

    def _close_message(self) -> Iterator[str]:
        if self._text is None:
            return
        part = _text_part(self._text)
        yield self._event("response.output_text.done", **self._place(), text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=part)
        item = self._message("completed", [part])
        yield self._item_event("done", item)
        self._items.append(item)
        self._text = None

    def _call(self, call: Call) -> Iterator[str]:
        item = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        place = {"item_id": item["id"], "output_index": len(self._items)}
        yield self._item_event("added", item | {"status": "in_progress", "arguments": ""})
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        yield self._item_event("done", item)
        self._items.append(item)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": len(self._items), "content_index": 0}

    def _item_event(self, what: str, item: dict[str, Any]) -> str:
        return self._event(f"response.output_item.{what}", output_index=len(self._items), item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _frame(model: str, request: ResponsesRequest) -> dict[str, Any]:
    """The response without its output; it repeats the fields of the request, as clients expect."""
    asked = request.model_dump(by_alias=True, exclude_none=True)
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": request.temperature,
        "text": {"format": asked["text"].get("format", {"type": "text"})},
        "tool_choice": asked["tool_choice"],
        "tools": [tool.model_dump(exclude_none=True) for tool in request.functions],
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }
