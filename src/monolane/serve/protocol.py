"""The OpenAI chat protocol: what a request may say, and what the answers look like."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion, Delta, TokenLogprob
from monolane.errors import UsageError
from monolane.model.tokenizer import Tokenizer


class Strict(BaseModel):
    """Nothing unknown, nothing converted; null is the same as absent, as clients like to send it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class StreamOptions(Strict):
    include_usage: bool = False


class ResponseFormat(Strict):
    type: Literal["text"]


class ChatRequest(Strict):
    """Fields and defaults as in OpenAI's API, and the sampling fields its users know from other engines."""

    messages: list[ChatMessage]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    logprobs: bool = False
    top_logprobs: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    response_format: ResponseFormat | None = None
    user: str | None = None  # this and metadata: accepted, and ignored
    metadata: dict[str, Any] | None = None

    def params(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise UsageError("top_logprobs is given without logprobs.", 'Add "logprobs": true.')
        return SamplingParams(
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={_token_id(token): bias for token, bias in self.logit_bias.items()},
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


@dataclass(frozen=True)
class Reply:
    """Makes the bodies of one answer, which all carry the same id, time and model."""

    model: str
    tokenizer: Tokenizer
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def whole(self, result: Completion) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": self._logprobs(result.logprobs),
            "finish_reason": result.finish_reason,
        }
        extra = {"usage": usage(result), "timings": result.timings.to_dict()}
        return self._body("chat.completion", [choice]) | extra

    def first(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, delta: Delta) -> dict[str, Any]:
        return self._chunk({"content": delta.text}, self._logprobs(delta.logprobs))

    def last(self, result: Completion) -> dict[str, Any]:
        return self._chunk({}, finish=result.finish_reason) | {"timings": result.timings.to_dict()}

    def usage(self, result: Completion) -> dict[str, Any]:
        return self._body("chat.completion.chunk", []) | {"usage": usage(result)}

    def _chunk(self, delta: dict[str, str], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        content = [
            self._token(entry.token_id, entry.logprob)
            | {"top_logprobs": [self._token(token, logprob) for token, logprob in entry.top]}
            for entry in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        # A token may be a part of a character: then its text is a stand-in, and its bytes tell the truth.
        spelled = list(self.tokenizer.token_bytes(token))
        return {"token": self.tokenizer.token_text(token), "logprob": logprob, "bytes": spelled}


def usage(result: Completion) -> dict[str, Any]:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": len(result.token_ids),
        "total_tokens": result.prompt_tokens + len(result.token_ids),
        "prompt_tokens_details": {"cached_tokens": result.timings.cached_tokens},
    }


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UsageError(f"logit_bias has the key {text!r}.", "Its keys are token ids, as decimal numbers in strings.")
    return int(text)
