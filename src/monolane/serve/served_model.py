"""One model of the server: its names, its engine, and the way from a chat request to that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from monolane.engine.async_engine import AsyncEngine
from monolane.engine.chat_tokenizer import ChatTokenizer
from monolane.serve.chat_task import ChatTask, Submitted
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.metrics import ModelMetrics
from monolane.serve.playground_routes import Machine
from monolane.serve.schemas import followable
from monolane.serve.structured_output import GrammarCompiler
from monolane.serve.thinking import OPEN
from monolane.serve.token_json import TokenJson
from monolane.serve.tool_parser import parser_for
from monolane.serve.tools import Style, call_grammar, style_of


class ServedModel:
    """``ceiling`` gives the measured read bandwidth of the machine in bytes/s; None where it was not measured."""

    def __init__(
        self,
        engine: AsyncEngine,
        model_id: str,
        aliases: Sequence[str],
        grammars: GrammarCompiler,
        metrics: ModelMetrics,
        ceiling: Callable[[], float | None],
    ) -> None:
        self.engine = engine
        self.model_id = model_id
        self.names = (model_id, *aliases)  # what clients may call the model
        self.grammars = grammars
        self.metrics = metrics
        self.ceiling = ceiling
        self._style: tuple[Style | None] | None = None  # known after the first chat request
        self._token_json: tuple[ChatTokenizer, TokenJson] | None = None  # of the tokenizer that is loaded now

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together; NotReadyError until the model is loaded."""
        return self.engine.loaded()[1].context

    @property
    def token_json(self) -> TokenJson:
        tokenizer, _ = self.engine.loaded()
        if self._token_json is None or self._token_json[0] is not tokenizer:
            self._token_json = (tokenizer, TokenJson(tokenizer.token_bytes))
        return self._token_json[1]

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

    async def grammar_of(self, task: ChatTask) -> tuple[str | None, list[str]]:
        """For a prompt without a chat template: the grammar of its schema, if any, and what of that is not enforced."""
        return await self._grammar(task, None)

    async def capabilities(self) -> list[str]:
        """In Ollama's words; none before the model was loaded once."""
        if (about := self.engine.about) is None:
            return []
        if self.engine.state.status == "ready" and about.template:
            await self._style_of_calls()
        has_tools = self._style is not None and self._style[0] is not None
        return ["tools"] * has_tools + ["thinking"] * self.can_think + ["insert"] * about.can_infill

    @property
    def can_think(self) -> bool:
        """Whether its chat template knows of thoughts before an answer."""
        template = self.engine.about.template if self.engine.about else ""
        return OPEN in template or "enable_thinking" in template

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
