"""The request formats of Ollama's /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.engine.params import SamplingParams
from monolane.errors import UsageError
from monolane.model.chat import Rendering
from monolane.model.generation_config import SuggestedSampling
from monolane.serve import durations
from monolane.serve.chat_request import ANY_OBJECT, Tool, ToolCall
from monolane.serve.chat_task import MAX_TOOLS, AnswerSchema, ChatTask
from monolane.serve.protocol import MAX_MESSAGES, Liberal

NoImages = Annotated[list[Any], Field(max_length=0)]


class Options(Liberal):
    """Those that change an answer here; the others, such as ``num_gpu``, are ignored. Where one is not given, the model
    is sampled as its makers suggest."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] = Field(default=[])
    num_predict: int | None = None
    num_ctx: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def sampling(self, suggested: SuggestedSampling) -> SamplingParams:
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed is None or self.seed < 0 else self.seed,
            "max_tokens": None if self.num_predict is None or self.num_predict < 0 else self.num_predict,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        # The likeliest token, every time, is not what penalties that were not asked for leave of it.
        start: Mapping[str, Any] = {} if self.temperature == 0 else asdict(suggested)
        return SamplingParams(
            **{**start, **{key: value for key, value in given.items() if value is not None}}, stop=self.stop
        )


class OllamaRequest(Liberal):
    """What the two have in common. Unknown fields are ignored, as Ollama does."""

    model: str
    stream: bool = True
    format: str | dict[str, Any] = ""
    options: Options = Options()
    keep_alive: str | float | None = None
    think: bool | str | None = None  # or how hard: "low", "medium", "high"

    @property
    def keep_alive_s(self) -> float | None:
        return None if self.keep_alive is None else durations.seconds(self.keep_alive, "keep_alive")

    @property
    def thinks(self) -> bool | None:
        """None: as the model likes."""
        return self.think is not False if self.think is not None else None

    def rendering(self) -> Rendering:
        return Rendering(variables={} if self.thinks is None else {"enable_thinking": self.thinks})

    def answer_schema(self) -> AnswerSchema | None:
        match self.format:
            case "":
                return None
            case "json":
                return AnswerSchema(ANY_OBJECT, "format")
            case dict():
                return AnswerSchema(self.format, "format")
        raise UsageError(f"format is {self.format!r}.", 'Send "json" or a JSON schema.')

    def warnings(self, context: int) -> list[str]:
        asked = self.options.num_ctx
        return [f"num_ctx: the context is {context} tokens"] if asked is not None and asked > context else []


class OllamaMessage(Liberal):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: NoImages | None = None
    tool_calls: list[ToolCall] = Field(default=[])
    tool_name: str | None = None

    def plain(self) -> dict[str, Any]:
        fields = {
            "name": self.tool_name,
            "reasoning_content": self.thinking,
            "tool_calls": [call.plain() for call in self.tool_calls],
        }
        return {"role": self.role, "content": self.content} | {key: value for key, value in fields.items() if value}


class OllamaChatRequest(OllamaRequest):
    messages: list[OllamaMessage] = Field(default=[], max_length=MAX_MESSAGES)
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)

    def task(self, suggested: SuggestedSampling, context: int) -> ChatTask:
        return ChatTask(
            messages=[message.plain() for message in self.messages],
            params=self.options.sampling(suggested),
            tools=[tool.plain() for tool in self.tools],
            schema=self.answer_schema(),
            how=self.rendering(),
            warnings=self.warnings(context),
        )


class OllamaGenerateRequest(OllamaRequest):
    prompt: str = ""
    system: str = ""
    suffix: str = ""
    raw: bool = False
    images: NoImages | None = None
    template: Literal[""] = ""
    context: Annotated[list[int], Field(max_length=0)] | None = None  # Ollama has given it up: /api/chat remembers

    def task(self, suggested: SuggestedSampling, context: int) -> ChatTask:
        """The prompt as a conversation of one message."""
        told = [{"role": "system", "content": self.system}] if self.system else []
        return ChatTask(
            messages=[*told, {"role": "user", "content": self.prompt}],
            params=self.options.sampling(suggested),
            schema=self.answer_schema(),
            how=self.rendering(),
            warnings=self.warnings(context),
        )
