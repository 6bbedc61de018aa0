"""The request and response formats of /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.chat_tokenizer import check_length
from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion, Delta, TokenLogprob
from monolane.serve.answering import ServerSentEvents, event
from monolane.serve.chat_dialect import DONE
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.protocol import SamplingFields, usage, usage_so_far
from monolane.serve.token_json import TokenJson

MAX_PROMPT_TOKENS = 1 << 20
MAX_PROMPTS = 128  # of one request

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")

TokenIds = Annotated[list[int], Field(max_length=MAX_PROMPT_TOKENS)]


class CompletionRequest(SamplingFields):
    """The prompt is taken as it is, without a chat template; control tokens in it are recognised."""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    suffix: str = ""  # what comes after the answer: the model fills in the middle
    max_tokens: int | None = 16  # OpenAI's default
    logprobs: int | None = None
    echo: bool = False  # the prompt comes before the answer, with its logprobs where they are asked for
    add_special_tokens: bool = True

    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
            return [prompt]
        if len(prompt) > MAX_PROMPTS:
            raise HttpError(400, f"prompt has {len(prompt)} prompts: {MAX_PROMPTS} are the most.", param="prompt")
        if len(prompt) > 1 and self.stream:
            raise unsupported("stream", "stream: several prompts are answered as a whole only.")
        return list(prompt)

    @property
    def prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None

    def params(self) -> SamplingParams:
        params = self.sampling(self.max_tokens, self.logprobs)
        # Who wants a prompt's logprobs counts on one more token, even where that is the end of the text.
        one_more = self.prompt_logprobs is not None and params.max_tokens == 1
        return replace(params, ignore_eos=True) if one_more else params


async def tokens_of(engine: AsyncEngine, body: CompletionRequest, prompt: str | list[int]) -> list[int]:
    if not body.suffix:
        return prompt if isinstance(prompt, list) else await engine.text_tokens(prompt, body.add_special_tokens)
    if isinstance(prompt, list):
        raise unsupported("suffix", "suffix goes with a prompt of text, not with one of token ids.")
    tokenizer, target = engine.loaded()
    check_length([prompt, body.suffix], target.context)
    return await engine.in_thread(lambda: tokenizer.infill_tokens(prompt, body.suffix))


def joined(bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers to several prompts as one response."""
    choices = [body["choices"][0] | {"index": index} for index, body in enumerate(bodies)]
    made = {key: sum(body["usage"][key] for body in bodies) for key in _COUNTS}
    return bodies[0] | {"choices": choices, "usage": bodies[0]["usage"] | made, "timings": None}


class CompletionDialect(ServerSentEvents):
    def __init__(self, model: str, token_json: TokenJson, answer: Answer, body: CompletionRequest) -> None:
        self._token_json = token_json
        self._answer = answer
        self._options = body.stream_options
        self._echo = "".join(map(token_json.text, answer.request.tokens)) if body.echo else ""
        self._made = 0
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        self._head["model"] = model

    def begin(self) -> Iterator[str]:
        if self._echo:
            yield event(self._body(self._echo, self._prompt_logprobs(), None) | self._usage())

    def piece(self, delta: Delta) -> Iterator[str]:
        self._made += len(delta.token_ids)
        if delta.text or delta.logprobs:
            yield event(self._body(delta.text, self._logprobs(delta.logprobs), None) | self._usage())

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
        logprobs = _after(self._prompt_logprobs(), self._logprobs(result.logprobs))
        body = self._body(self._echo + result.text, logprobs, result.finish_reason)
        return body | {"usage": usage(result), "timings": result.timings.to_dict()}

    def _usage(self) -> dict[str, Any]:
        if not self._options.continuous_usage_stats:
            return {}
        return {"usage": usage_so_far(self._answer.prompt_tokens, self._made, self._answer.cached_tokens)}

    def _body(self, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "choices": [choice]}

    def _logprobs(self, logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        spell = self._token_json.text
        return {
            "tokens": [spell(entry.token_id) for entry in logprobs],
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [{spell(token): logprob for token, logprob in entry.top} for entry in logprobs],
            "text_offset": [len(self._echo) + entry.offset for entry in logprobs],
        }

    def _prompt_logprobs(self) -> dict[str, Any] | None:
        """Those of the prompt. Nothing is known of its first token, which nothing comes before."""
        if (entries := self._answer.prompt_logprobs) is None:
            return None
        words = list(map(self._token_json.text, self._answer.request.tokens))
        known = self._logprobs(entries) or {}
        return {
            "tokens": words,
            "token_logprobs": [None, *known["token_logprobs"]],
            "top_logprobs": [None, *known["top_logprobs"]],
            "text_offset": list(accumulate(map(len, words[:-1]), initial=0)),
        }


def _after(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return second
    return {key: first[key] + second[key] for key in first}
