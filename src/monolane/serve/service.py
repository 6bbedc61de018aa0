"""What the routes share: the engine, the name it goes by, and the way from a conversation to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.params import SamplingParams
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.forms import Forms, check_schema
from monolane.serve.metrics import Metrics
from monolane.serve.playground_routes import Machine
from monolane.serve.token_json import TokenJson
from monolane.serve.tools import Reader, Style, call_grammar, reader_for, style_of

MOST_TOOLS = 128


@dataclass(frozen=True)
class Question:
    """A conversation and how it is to be answered, whichever API it came by.

    tools     functions as OpenAI's chat API writes them: {"type": "function", "function": {"name": …}}
    choice    "auto", "none", "required", or the name of the one function that must be called
    parallel  several calls may come in one answer
    schema    of the JSON that the answer must be; None: anything
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


@dataclass(frozen=True)
class Asked:
    """An answer under way, and what finds the calls in it."""

    answer: Answer
    reader: Reader


class Service:
    """``ceiling`` knows the bytes/s that the machine really reads, once there is a model; None: nobody measured it."""

    def __init__(self, engine: AsyncEngine, model_id: str, ceiling: Callable[[], float | None] = lambda: None) -> None:
        self.engine = engine
        self.model_id = model_id
        self.created = int(time.time())  # seconds since 1970
        self.forms = Forms()
        self.ceiling = ceiling
        self.metrics = Metrics(engine, model_id, ceiling)
        self._style: tuple[Style | None] | None = None  # found out with the first question
        self._token_json: TokenJson | None = None

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together; NotReadyError until that is known."""
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

    async def ask(self, question: Question) -> Asked:
        """A place in the queue. What is wrong with the question is raised here."""
        tools = () if question.choice == "none" else question.tools
        if tools and question.schema is not None:
            raise unsupported("response_format", "A form of the answer cannot be asked for together with tools.")
        tokens = await self.engine.chat_tokens(question.messages, tools)
        style = await self._style_of_calls()
        if tools and style is None:
            raise unsupported("tools", f"The chat template of {self.model_id} knows no tools.")
        if question.choice not in ("auto", "none", "required", *question.names):
            raise HttpError(400, f"tool_choice names {question.choice!r}, which is not in tools.", param="tool_choice")
        grammar = await self._grammar(question, style)
        answer = self.engine.submit(tokens, question.params, grammar=grammar)
        return Asked(answer, reader_for(style, [] if not tools else question.names, question.parallel))

    def machine(self) -> Machine:
        _, target = self.engine.loaded()
        return Machine(
            model=self.model_id,
            device=target.name,
            bytes_per_token=target.bytes_per_token,
            ceiling_bytes_per_s=self.ceiling(),
            context=target.context,
        )

    async def close(self, drain_s: float) -> None:
        await self.engine.close(drain_s)
        self.forms.close()

    async def _style_of_calls(self) -> Style | None:
        """How the model writes calls; its template is looked at once."""
        if self._style is None:
            tokenizer, _ = self.engine.loaded()
            self._style = (await self.engine.in_thread(lambda: style_of(tokenizer)),)
        return self._style[0]

    async def _grammar(self, question: Question, style: Style | None) -> str | None:
        if question.schema is not None:
            return await self.forms.schema(question.schema, "response_format")
        if not question.tools or question.choice in ("auto", "none") or style is None:
            return None
        functions = [
            (tool["function"]["name"], tool["function"]["parameters"])
            for tool in question.tools
            if question.choice in ("required", tool["function"]["name"])
        ]
        for name, schema in functions:
            check_schema(schema, f"tools: the parameters of {name}")
        several = question.parallel and question.choice == "required"
        return await self.forms.compile("lark", call_grammar(style, functions, several), "tools")
