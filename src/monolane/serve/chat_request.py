"""The request format of /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.errors import UsageError
from monolane.serve.protocol import FUNCTION_NAME, MAX_MESSAGES, SamplingFields, Strict, function_tool
from monolane.serve.service import MAX_TOOLS, ChatTask

FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]
ANY_OBJECT = {"type": "object"}


class TextPart(Strict):
    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    name: str
    arguments: str = "{}"


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def plain(self) -> dict[str, Any]:
        arguments = json_object(self.function.arguments, "messages: tool_calls: arguments")
        return {
            "type": "function",
            "id": self.id or "",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it, with its text in one piece."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        calls = [call.plain() for call in self.tool_calls or []]
        fields = {
            "content": content,
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        return {"role": self.role} | {key: value for key, value in fields.items() if value is not None}


class Function(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False  # accepted, and ignored: arguments follow their schema wherever tool_choice forces a call


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        return function_tool(self.function.name, self.function.description, self.function.parameters)


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(default=ANY_OBJECT, alias="schema")
    strict: bool = True


class TextFormat(Strict):
    type: Literal["text"]


class ObjectFormat(Strict):
    type: Literal["json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatRequest(SamplingFields):
    messages: list[ChatMessage] = Field(max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    # Accepted, and ignored: they do not change the answer.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    def task(self) -> ChatTask:
        if self.top_logprobs is not None and not self.logprobs:
            raise UsageError("top_logprobs is given without logprobs.", 'Add "logprobs": true.')
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        choice = self.tool_choice
        return ChatTask(
            messages=[message.plain() for message in self.messages],
            params=self.sampling(most, (self.top_logprobs or 0) if self.logprobs else None),
            tools=[tool.plain() for tool in self.tools],
            choice=choice if isinstance(choice, str) else choice.function.name,
            parallel=self.parallel_tool_calls,
            schema=schema_of(self.response_format),
        )


def schema_of(response_format: TextFormat | ObjectFormat | SchemaFormat | None) -> dict[str, Any] | None:
    """The JSON schema that the answer must follow; None where it is free."""
    match response_format:
        case ObjectFormat():
            return ANY_OBJECT
        case SchemaFormat():
            return response_format.json_schema.schema_
        case _:
            return None


def json_object(text: str, where: str) -> Any:
    """Arguments of a tool call, which clients send back as JSON in a string."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}.", "Send it as the model gave it.") from error
