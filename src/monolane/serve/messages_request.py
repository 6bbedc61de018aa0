"""The request format of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.engine.params import SamplingParams
from monolane.serve.chat_request import FunctionName
from monolane.serve.chat_task import MAX_TOOLS, AnswerSchema, ChatTask
from monolane.serve.protocol import MAX_MESSAGES, Liberal, Strict, function_tool

Ignored = dict[str, Any] | None  # accepted, and ignored: prefix caching, for example, needs no hints here


class TextBlock(Liberal):
    type: Literal["text"]
    text: str


class ToolUseBlock(Liberal):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any = Field(default_factory=dict)  # an object, or whatever else the model wrote


class ToolResultBlock(Liberal):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False


class ThinkingBlock(Liberal):
    """The reasoning of another model: it is left out of the prompt."""

    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


class Message(Liberal):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def plain(self) -> list[dict[str, Any]]:
        """The messages for a chat template: each tool result is a message of its own, before the user's text."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        results = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
            for block in self.content
            if isinstance(block, ToolResultBlock)
        ]
        calls = [
            {"type": "function", "id": block.id, "function": {"name": block.name, "arguments": block.input}}
            for block in self.content
            if isinstance(block, ToolUseBlock)
        ]
        text = "".join(block.text for block in self.content if isinstance(block, TextBlock))
        said: dict[str, Any] = {"role": self.role, "content": text}
        if calls:
            said["tool_calls"] = calls
        return [*results, said] if text or calls or not results else results


class Tool(Liberal):
    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        return function_tool(self.name, self.description, self.input_schema)


class ToolChoice(Liberal):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def choice(self) -> str:
        return {"auto": "auto", "any": "required", "none": "none", "tool": self.name or ""}[self.type]


class JsonFormat(Liberal):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Liberal):
    """How the answer is written; ``effort``, a hint to other models, is ignored."""

    format: JsonFormat | None = None


class CountRequest(Strict):
    """The fields that determine the prompt."""

    messages: list[Message] = Field(max_length=MAX_MESSAGES)
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    output_config: OutputConfig = OutputConfig()
    mcp_servers: list[Any] = Field(default=[], max_length=0)
    # Accepted, and ignored.
    thinking: Ignored = None
    context_management: Ignored = None
    cache_control: Ignored = None
    speed: str | None = None

    def plain_messages(self) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": _text(self.system, "\n\n")}]
        return [*system, *(plain for message in self.messages for plain in message.plain())]

    def plain_tools(self) -> list[dict[str, Any]]:
        return [tool.plain() for tool in self.tools]


class MessagesRequest(CountRequest):
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_sequences: list[str] = Field(default_factory=list)
    stream: bool = False
    # Accepted, and ignored.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None

    def task(self) -> ChatTask:
        wanted = self.output_config.format
        return ChatTask(
            messages=self.plain_messages(),
            params=SamplingParams(
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                stop=self.stop_sequences,
            ),
            tools=self.plain_tools(),
            choice=self.tool_choice.choice(),
            parallel=not self.tool_choice.disable_parallel_tool_use,
            # Anthropic's schemas are always strict.
            schema=None if wanted is None else AnswerSchema(wanted.schema_, "output_config.format", True),
        )


def _text(content: str | list[TextBlock], between: str = "") -> str:
    return content if isinstance(content, str) else between.join(block.text for block in content)
