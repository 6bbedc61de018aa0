"""The request format of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from monolane.engine.params import SamplingParams
from monolane.serve.chat_request import FunctionName
from monolane.serve.protocol import MAX_MESSAGES, Strict, function_tool
from monolane.serve.service import MAX_TOOLS, ChatTask

Ignored = dict[str, Any] | None  # accepted, and ignored: prefix caching, for example, needs no hints here


class TextBlock(Strict):
    type: Literal["text"]
    text: str
    cache_control: Ignored = None
    citations: list[Any] | None = None


class ToolUseBlock(Strict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)
    cache_control: Ignored = None
    caller: Ignored = None


class ToolResultBlock(Strict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False
    cache_control: Ignored = None


class ThinkingBlock(Strict):
    """The reasoning of another model: it is left out of the prompt."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


class Message(Strict):
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


class Tool(Strict):
    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: Ignored = None
    eager_input_streaming: bool | None = None
    strict: bool | None = None

    def plain(self) -> dict[str, Any]:
        return function_tool(self.name, self.description, self.input_schema)


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def choice(self) -> str:
        return {"auto": "auto", "any": "required", "none": "none", "tool": self.name or ""}[self.type]


class CountRequest(Strict):
    """The fields that determine the prompt."""

    messages: list[Message] = Field(max_length=MAX_MESSAGES)
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    # Accepted, and ignored.
    thinking: Ignored = None
    context_management: Ignored = None
    output_config: Ignored = None

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

    def task(self) -> ChatTask:
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
        )


def _text(content: str | list[TextBlock], between: str = "") -> str:
    return content if isinstance(content, str) else between.join(block.text for block in content)
