"""The request format of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from monolane.engine.params import SamplingParams
from monolane.serve.chat_request import ANY_OBJECT, FunctionName
from monolane.serve.chat_task import MAX_TOOLS, AnswerSchema, ChatTask
from monolane.serve.protocol import MAX_MESSAGES, Liberal, Strict, function_tool


class TextContent(Liberal):
    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""


class MessageItem(Liberal):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextContent]

    def plain(self) -> dict[str, Any]:
        return {"role": self.role, "content": _text(self.content)}


class CallItem(Liberal):
    type: Literal["function_call"]
    name: str
    arguments: str
    call_id: str

    def plain(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        call = {"type": "function", "id": self.call_id, "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


class OutputItem(Liberal):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextContent]

    def plain(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": _text(self.output)}


class ReasoningItem(Liberal):
    """The reasoning of another model: it is left out of the prompt."""

    type: Literal["reasoning"]

    def plain(self) -> None:
        return None


Item = MessageItem | CallItem | OutputItem | ReasoningItem


class FunctionTool(Liberal):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    def plain(self) -> dict[str, Any]:
        return function_tool(self.name, self.description, self.parameters)


class OtherTool(BaseModel):
    """Tools that Codex always offers besides functions. They are left out of the prompt; ``tools`` of the response has
    the functions alone."""

    type: Literal["custom", "local_shell", "namespace", "web_search"]


class NamedTool(Liberal):
    type: Literal["function"]
    name: str


class PlainText(Liberal):
    type: Literal["text"]


class JsonObject(Liberal):
    type: Literal["json_object"]


class JsonSchema(Liberal):
    type: Literal["json_schema"]
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


class TextOptions(Liberal):
    format: Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")] | None = None

    def schema_of_answer(self) -> AnswerSchema | None:
        match self.format:
            case JsonObject():
                return AnswerSchema(ANY_OBJECT, "text.format")
            case JsonSchema(schema_=schema, strict=strict):
                return AnswerSchema(schema, "text.format", strict)
            case _:
                return None


class ResponsesRequest(Strict):
    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stream: bool = False
    text: TextOptions = TextOptions()
    tools: list[Annotated[FunctionTool | OtherTool, Field(discriminator="type")]] = Field(
        default=[], max_length=MAX_TOOLS
    )
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    # No conversation is stored: clients send it whole in every request.
    store: bool | None = None
    background: Literal[False] = False
    # Accepted, and ignored: they do not change the answer.
    metadata: dict[str, Any] | None = None
    user: str | None = None
    include: list[str] | None = None
    top_logprobs: Literal[0] | None = None
    max_tool_calls: int | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["disabled", "auto"] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    stream_options: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None

    @property
    def functions(self) -> list[FunctionTool]:
        return [tool for tool in self.tools if isinstance(tool, FunctionTool)]

    def task(self) -> ChatTask:
        items = [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [plain for item in items if (plain := item.plain()) is not None]
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        choice = self.tool_choice
        return ChatTask(
            messages=_joined(messages),
            params=SamplingParams(max_tokens=self.max_output_tokens, temperature=self.temperature, top_p=self.top_p),
            tools=[tool.plain() for tool in self.functions],
            choice=choice if isinstance(choice, str) else choice.name,
            parallel=self.parallel_tool_calls,
            schema=self.text.schema_of_answer(),
        )


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as chat templates take them. Text and calls of one answer, which are separate items here, become one
    message, and so do consecutive system messages."""
    result: list[dict[str, Any]] = []
    for message in messages:
        before = result[-1] if result else {"role": None}
        is_system = message["role"] in ("system", "developer")
        if message["role"] == "assistant" == before["role"] and ("tool_calls" in message or not before["content"]):
            before["content"] += message["content"]
            before["tool_calls"] = before.get("tool_calls", []) + message.get("tool_calls", [])
        elif is_system and before["role"] in ("system", "developer"):
            before["content"] += "\n\n" + message["content"]
        else:
            result.append(dict(message))
    return result


def _text(content: str | list[TextContent]) -> str:
    return content if isinstance(content, str) else "".join(part.text or part.refusal for part in content)
