"""The request format of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.errors import UsageError
from monolane.model.chat import Rendering
from monolane.serve.chat_task import MAX_TOOLS, AnswerSchema, ChatTask
from monolane.serve.protocol import FUNCTION_NAME, MAX_MESSAGES, Liberal, SamplingFields, Strict, function_tool

FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]
ANY_OBJECT = {"type": "object"}


class TextPart(Liberal):
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = ""
    refusal: str = ""


class CalledFunction(Liberal):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Liberal):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"type": "function", "id": self.id or "", "function": function}


class ChatMessage(Liberal):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    # What the model could not read must not go unnoticed.
    audio: Literal["none"] | None = None
    images: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none"] | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it, with its text in one piece."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or part.refusal for part in content)
        calls = [call.plain() for call in self.tool_calls or []]
        fields = {
            "content": content,
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        return {"role": self.role} | {key: value for key, value in fields.items() if value is not None}


class RenderingFields(Strict):
    """How the conversation becomes a prompt. A last message of the assistant is gone on with, unless told otherwise."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})

    def rendering(self) -> Rendering:
        opens, goes_on = self.add_generation_prompt, self.continue_final_message
        if opens and goes_on:
            raise UsageError(
                "add_generation_prompt and continue_final_message are both true.", "Open a turn, or go on with one."
            )
        if goes_on is None and opens is not None:
            goes_on = False
        return Rendering(opens is not False, goes_on, self.chat_template_kwargs)


class Function(Liberal):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False  # accepted, and ignored: arguments follow their schema wherever tool_choice forces a call


class Tool(Liberal):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        return function_tool(self.function.name, self.function.description, self.function.parameters)


class NamedFunction(Liberal):
    name: str


class NamedTool(Liberal):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Liberal):
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(default=ANY_OBJECT, alias="schema")
    strict: bool = False


class TextFormat(Liberal):
    type: Literal["text"]


class ObjectFormat(Liberal):
    type: Literal["json_object"]


class SchemaFormat(Liberal):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatRequest(SamplingFields, RenderingFields):
    messages: list[ChatMessage] = Field(max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] | None = None
    echo: Literal[False] = False
    # Accepted, and ignored: they do not change the answer, or no more than a hint to another model would.
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    prediction: dict[str, Any] | None = None

    def task(self) -> ChatTask:
        if self.top_logprobs and not self.logprobs:
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
            how=self.rendering(),
            warnings=self.warnings(),
        )


def schema_of(response_format: TextFormat | ObjectFormat | SchemaFormat | None) -> AnswerSchema | None:
    """The JSON schema that the answer must follow; None where it is free."""
    match response_format:
        case ObjectFormat():
            return AnswerSchema(ANY_OBJECT, "response_format")
        case SchemaFormat(json_schema=wanted):
            return AnswerSchema(wanted.schema_, "response_format", wanted.strict)
        case _:
            return None
