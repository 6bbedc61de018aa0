"""What the APIs have in common: validation, the sampling fields, token usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from monolane.engine.params import SamplingParams
from monolane.engine.result import Completion
from monolane.errors import UsageError

MAX_MESSAGES = 10_000
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class Strict(BaseModel):
    """A request: unknown fields are refused, because they may change the answer, and types are not converted. Null
    counts as absent, because clients send it so."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Liberal(Strict):
    """A part of a request that clients send back as they, or another server, have made it: keys that are not known here
    are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class StreamOptions(Liberal):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage so far in every chunk


class SamplingFields(Strict):
    """Fields and defaults of OpenAI's API, and the further fields that vLLM has."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = Field(default=[], max_length=256)
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    use_beam_search: Literal[False] = False
    include_stop_str_in_output: Literal[False] = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    # Accepted, and ignored: they do not change the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    priority: int | None = None
    request_id: str | None = None
    spaces_between_special_tokens: bool | None = None

    def warnings(self) -> list[str]:
        """What the answer will not have, though it was asked for; it goes into a header."""
        short = "min_tokens is not enforced" if self.min_tokens > 0 and not self.ignore_eos else None
        special = None if self.skip_special_tokens else "skip_special_tokens: the text has no special tokens"
        return [text for text in (short, special) if text]

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 means all tokens, as in vLLM
            top_p=self.top_p,
            min_p=self.min_p,
            seed=None if self.seed == -1 else self.seed,  # -1 means any, as in vLLM
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={_token_id(token): bias for token, bias in self.logit_bias.items()},
            logprobs=logprobs,
        )


def usage(result: Completion) -> dict[str, Any]:
    return usage_so_far(result.prompt_tokens, len(result.token_ids), result.timings.cached_tokens)


def usage_so_far(prompt_tokens: int, made: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": made,
        "total_tokens": prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A function in the format that chat templates expect."""
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": function}


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UsageError(f"logit_bias has the key {text!r}.", "Its keys are token ids, as decimal numbers in strings.")
    return int(text)
