"""The request and response formats of /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.engine.answer import Answer
from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion, Delta, TokenLogprob
from monolane.serve.answering import event
from monolane.serve.chat_dialect import DONE
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.protocol import SamplingFields, StreamOptions, usage, usage_so_far
from monolane.serve.token_json import TokenJson

MAX_PROMPT_TOKENS = 1 << 20

TokenIds = Annotated[list[int], Field(max_length=MAX_PROMPT_TOKENS)]


class CompletionRequest(SamplingFields):
    """The prompt is taken as it is, without a chat template; control tokens in it are recognised."""

    prompt: str | TokenIds | list[str] | list[list[int]]
    max_tokens: int | None = 16  # OpenAI's default
    logprobs: int | None = None
    best_of: Literal[1] = 1
    echo: Literal[False] = False

    def one_prompt(self) -> str | list[int]:
        """The prompt; a list of prompts may have one entry."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise unsupported("prompt", "prompt has several prompts; this server answers one at a time.")
            prompt = prompt[0]
        chosen: str | list[int] = prompt
        return chosen

    def params(self) -> SamplingParams:
        return self.sampling(self.max_tokens, self.logprobs)


class CompletionDialect:
    def __init__(self, model: str, token_json: TokenJson, answer: Answer, options: StreamOptions) -> None:
        self._token_json = token_json
        self._answer = answer
        self._options = options
        self._made = 0
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        self._head["model"] = model

    def begin(self) -> Iterator[str]:
        return iter(())

    def piece(self, delta: Delta) -> Iterator[str]:
        self._made += len(delta.token_ids)
        if delta.text or delta.logprobs:
            yield event(self._body(delta.text, delta.logprobs, None) | self._usage())

    def end(self, result: Completion) -> Iterator[str]:
        last = self._body("", None, result.finish_reason) | {"timings": result.timings.to_dict()}
        yield event(last | self._usage())
        if self._options.include_usage:
            yield event({**self._head, "choices": [], "usage": usage(result)})
        yield DONE

    def failure(self, error: HttpError) -> Iterator[str]:
        yield event(error.body())
        yield DONE

    def whole(self, result: Completion) -> dict[str, Any]:
        body = self._body(result.text, result.logprobs, result.finish_reason)
        return body | {"usage": usage(result), "timings": result.timings.to_dict()}

    def _usage(self) -> dict[str, Any]:
        if not self._options.continuous_usage_stats:
            return {}
        return {"usage": usage_so_far(self._answer.prompt_tokens, self._made, self._answer.cached_tokens)}

    def _body(self, text: str, logprobs: Sequence[TokenLogprob] | None, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": self._logprobs(logprobs), "finish_reason": finish}
        return {**self._head, "choices": [choice]}

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        spell = self._token_json.text
        return {
            "tokens": [spell(entry.token_id) for entry in logprobs],
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [{spell(token): logprob for token, logprob in entry.top} for entry in logprobs],
            "text_offset": [entry.offset for entry in logprobs],
        }
