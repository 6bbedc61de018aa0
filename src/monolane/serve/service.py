"""What the routes share: the engine, the model's public name, and the way from a chat request to the engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.params import SamplingParams
from monolane.model.chat import Rendering
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.metrics import Metrics
from monolane.serve.playground_routes import Machine
from monolane.serve.schemas import followable
from monolane.serve.structured_output import GrammarCompiler
from monolane.serve.token_json import TokenJson
from monolane.serve.tool_parser import ToolParser, parser_for
from monolane.serve.tools import Style, call_grammar, style_of

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


class Service:
    """``ceiling`` gives the measured read bandwidth of the machine in bytes/s; None where it was not measured."""

    def __init__(
        self,
        engine: AsyncEngine,
        model_id: str,
        ceiling: Callable[[], float | None] = lambda: None,
        aliases: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self.model_id = model_id
        self.names = (model_id, *aliases)  # what clients may call the model
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
        if name is not None and name not in self.names:
            message = f"This server has no model {name!r}; it serves {self.model_id!r}."
            raise HttpError(404, message, param="model", code="model_not_found")

    async def submit(self, task: ChatTask) -> Submitted:
        """Run or queue a chat request; a wrong one raises here."""
        tools = () if task.choice == "none" else task.tools
        tokens = await self.engine.chat_tokens(task.messages, tools, task.how)
        style = await self._style_of_calls()
        if tools and style is None:
            raise unsupported("tools", f"The chat template of {self.model_id} knows no tools.")
        if task.choice not in ("auto", "none", "required", *task.names):
            raise HttpError(400, f"tool_choice names {task.choice!r}, which is not in tools.", param="tool_choice")
        grammar, left_out = await self._grammar(task, style)
        answer = self.engine.submit(tokens, task.params, grammar=grammar)
        return Submitted(answer, parser_for(task.names if tools else [], task.parallel), [*task.warnings, *left_out])

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

    async def _grammar(self, task: ChatTask, style: Style | None) -> tuple[str | None, list[str]]:
        """The grammar that the answer must follow, if any, and what of its schemas is not enforced."""
        wanted = None
        if task.schema is not None:
            wanted = followable(task.schema.schema, task.schema.field, task.schema.strict)
        forced = task.choice not in ("auto", "none")
        if not task.tools or style is None or task.choice == "none" or not (forced or wanted):
            if wanted is None or task.schema is None:
                return None, []
            grammar = await self.grammars.compile("json_schema", json.dumps(wanted.schema), task.schema.field)
            return grammar, wanted.left_out
        functions = [
            (tool["function"]["name"], followable(tool["function"]["parameters"], "tools"))
            for tool in task.tools
            if task.choice in ("auto", "required", tool["function"]["name"])
        ]
        left_out = [text for _, made in functions for text in made.left_out]
        several = task.parallel and task.choice in ("auto", "required")
        answer = None
        if wanted is not None and not forced:
            answer, left_out = wanted.schema, left_out + wanted.left_out
        text = call_grammar(style, [(name, made.schema) for name, made in functions], several, answer)
        return await self.grammars.compile("lark", text, "tools"), left_out
