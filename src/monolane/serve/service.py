"""What the routes share: the engine, the name it goes by, and the way from a conversation to its answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.params import SamplingParams
from monolane.engine.state import TargetInfo
from monolane.errors import NotReadyError
from monolane.model.load import Model
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.forms import Forms, check_schema
from monolane.serve.metrics import Metrics
from monolane.serve.playground_routes import Machine
from monolane.serve.prompt import Prompter, chars_in, check_length
from monolane.serve.tools import Reader, Style, call_grammar, reader_for, style_of

MOST_TOOLS = 128
PROMPT_THREADS = 2  # that tokenize, beside the event loop; each may keep memory for the longest prompt it has seen

T = TypeVar("T")


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
    def __init__(self, engine: AsyncEngine, model_id: str, ceiling_bytes_per_s: float | None = None) -> None:
        self.engine = engine
        self.model_id = model_id
        self.created = int(time.time())  # seconds since 1970
        self.ceiling_bytes_per_s = ceiling_bytes_per_s
        self.forms = Forms()
        self.metrics = Metrics(engine, model_id, ceiling_bytes_per_s)
        self._talk: tuple[Prompter, Style | None] | None = None
        self._threads = ThreadPoolExecutor(PROMPT_THREADS, "monolane-prompts")

    def ready(self) -> tuple[Model, TargetInfo]:
        """What is served and on what; NotReadyError until that is known."""
        model, target = self.engine.model, self.engine.target
        if model is None or target is None:
            raise NotReadyError("The model is still loading.", "Ask again in a moment.")
        return model, target

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.model_id):
            message = f"This server has no model {name!r}; it serves {self.model_id!r}."
            raise HttpError(404, message, param="model", code="model_not_found")

    async def ask(self, question: Question) -> Asked:
        """A place in the queue. What is wrong with the question is raised here."""
        tools = () if question.choice == "none" else question.tools
        if tools and question.schema is not None:
            raise unsupported("response_format", "A form of the answer cannot be asked for together with tools.")
        tokens = await self.chat_tokens(question.messages, tools)
        _, style = await self._talking()
        if tools and style is None:
            raise unsupported("tools", f"The chat template of {self.model_id} knows no tools.")
        if question.choice not in ("auto", "none", "required", *question.names):
            raise HttpError(400, f"tool_choice names {question.choice!r}, which is not in tools.", param="tool_choice")
        grammar = await self._grammar(question, style)
        answer = self.engine.submit(tokens, question.params, grammar=grammar)
        return Asked(answer, reader_for(style, [] if not tools else question.names, question.parallel))

    async def complete(self, prompt: str | Sequence[int], params: SamplingParams) -> Answer:
        """Continue a prompt, just as it is."""
        return self.engine.submit(await self.text_tokens(prompt) if isinstance(prompt, str) else prompt, params)

    async def chat_tokens(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        _, target = self.ready()
        check_length(chars_in(messages) + chars_in(tools), target.context)
        prompter, _ = await self._talking()
        return await self._in_thread(lambda: prompter.tokens(messages, tools))

    async def text_tokens(self, text: str, special: bool = True) -> list[int]:
        model, target = self.ready()
        check_length(len(text), target.context)
        return await self._in_thread(lambda: model.tokenizer.encode(text, special=special))

    def machine(self) -> Machine:
        _, target = self.ready()
        workers = re.search(r"(\d+) (?:x|workers)", target.name)
        return Machine(
            model=self.model_id,
            device=target.name,
            workers=int(workers[1]) if workers else 1,
            bytes_per_token=target.bytes_per_token,
            ceiling_bytes_per_s=self.ceiling_bytes_per_s,
            context=target.context,
        )

    async def close(self, drain_s: float) -> None:
        await self.engine.close(drain_s)
        self.forms.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _talking(self) -> tuple[Prompter, Style | None]:
        """What is known of the model's template; found out once."""
        if self._talk is None:
            model, _ = self.ready()
            chat = model.chat
            self._talk = await self._in_thread(lambda: (Prompter(model), None if chat is None else style_of(chat)))
        return self._talk

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

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
