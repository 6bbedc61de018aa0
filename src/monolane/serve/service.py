"""What the routes share: the engine, the model's public name, and the way from a chat request to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.params import SamplingParams
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.metrics import Metrics
from monolane.serve.playground_routes import Machine
from monolane.serve.structured_output import GrammarCompiler, check_schema
from monolane.serve.token_json import TokenJson
from monolane.serve.tools import Style, ToolParser, call_grammar, parser_for, style_of

MAX_TOOLS = 128


@dataclass(frozen=True)
class ChatTask:
    """A chat request, whichever API it came through.

    tools     functions as OpenAI's chat API writes them: {"type": "function", "function": {"name": …}}
    choice    "auto", "none", "required", or the name of the one function that must be called
    parallel  whether one answer may have several calls
    schema    the JSON schema that the answer must follow; None where it is free
    """

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True
    schema: Mapping[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.tools]


class Service:
    """``ceiling`` gives the measured read bandwidth of the machine in bytes/s; None where it was not measured."""

    def __init__(self, engine: AsyncEngine, model_id: str, ceiling: Callable[[], float | None] = lambda: None) -> None:
        self.engine = engine
        self.model_id = model_id
        self.created = int(time.time())  # seconds since 1970
        self.grammars = GrammarCompiler()
        self.ceiling = ceiling
        self.metrics = Metrics(engine, model_id, ceiling)
        self._style: tuple[Style | None] | None = None  # known after the first chat request
        self._token_json: TokenJson | None = None

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together; NotReadyError until the model is loaded."""
        return self.engine.loaded()[1].context

    @property
    def token_json(self) -> TokenJson:
        if self._token_json is None:
            self._token_json = TokenJson(self.engine.loaded()[0].token_bytes)
        return self._token_json

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.model_id):
            message = f"This server has no model {name!r}; it serves {self.model_id!r}."
            raise HttpError(404, message, param="model", code="model_not_found")

    async def submit(self, task: ChatTask) -> tuple[Answer, ToolParser]:
        """Run or queue a chat request; a wrong one raises here. The parser finds the tool calls in its answer."""
        tools = () if task.choice == "none" else task.tools
        if tools and task.schema is not None:
            raise unsupported("response_format", "response_format cannot be used together with tools.")
        tokens = await self.engine.chat_tokens(task.messages, tools)
        style = await self._style_of_calls()
        if tools and style is None:
            raise unsupported("tools", f"The chat template of {self.model_id} knows no tools.")
        if task.choice not in ("auto", "none", "required", *task.names):
            raise HttpError(400, f"tool_choice names {task.choice!r}, which is not in tools.", param="tool_choice")
        grammar = await self._grammar(task, style)
        answer = self.engine.submit(tokens, task.params, grammar=grammar)
        return answer, parser_for(style, task.names if tools else [], task.parallel)

    def machine(self) -> Machine:
        tokenizer, target = self.engine.loaded()
        return Machine(
            model=self.model_id,
            device=target.name,
            bytes_per_token=target.bytes_per_token,
            ceiling_bytes_per_s=self.ceiling(),
            context=target.context,
            can_chat=tokenizer.can_chat,
            sampling=tokenizer.sampling,
        )

    async def close(self, drain_s: float) -> None:
        await self.engine.close(drain_s)
        self.grammars.close()

    async def _style_of_calls(self) -> Style | None:
        """How the model writes tool calls, from its chat template; found once."""
        if self._style is None:
            tokenizer, _ = self.engine.loaded()
            self._style = (await self.engine.in_thread(lambda: style_of(tokenizer)),)
        return self._style[0]

    async def _grammar(self, task: ChatTask, style: Style | None) -> str | None:
        if task.schema is not None:
            return await self.grammars.schema(task.schema, "response_format")
        if not task.tools or task.choice in ("auto", "none") or style is None:
            return None
        functions = [
            (tool["function"]["name"], tool["function"]["parameters"])
            for tool in task.tools
            if task.choice in ("required", tool["function"]["name"])
        ]
        for name, schema in functions:
            check_schema(schema, f"tools: the parameters of {name}")
        several = task.parallel and task.choice == "required"
        return await self.grammars.compile("lark", call_grammar(style, functions, several), "tools")
