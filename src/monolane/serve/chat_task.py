"""A chat request between the format of its API and the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monolane.engine.answer import Answer
from monolane.engine.params import SamplingParams
from monolane.model.chat import Rendering
from monolane.serve.tool_parser import ToolParser

MAX_TOOLS = 128


@dataclass(frozen=True)
class AnswerSchema:
    """The JSON schema that an answer must follow, and the ``field`` of the request that has it. ``strict``: its objects
    have no keys but those that they list."""

    schema: Mapping[str, Any]
    field: str
    strict: bool = False


@dataclass(frozen=True)
class ChatTask:
    """A chat request, whichever API it came through.

    tools     functions as OpenAI's chat API writes them: {"type": "function", "function": {"name": …}}
    choice    "auto", "none", "required", or the name of the one function that must be called
    parallel  whether one answer may have several calls
    schema    what the answer must follow; None where it is free. Where there are tools too, the answer is a call, or
              follows the schema
    how       how the conversation becomes a prompt
    warnings  what the answer will not have, though it was asked for
    """

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True
    schema: AnswerSchema | None = None
    how: Rendering = field(default_factory=Rendering)
    warnings: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


@dataclass(frozen=True)
class Submitted:
    """A chat request on its way: the parser finds the tool calls in its answer."""

    answer: Answer
    parser: ToolParser
    warnings: Sequence[str]
