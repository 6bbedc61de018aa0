"""Tool calls: how a model's family writes them, how they are parsed from an answer, and a grammar that forces them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from monolane.engine.chat_tokenizer import ChatTokenizer
from monolane.errors import MonolaneError

Style = Literal["hermes", "llama", "mistral"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # hermes style: Qwen writes these around each call


@dataclass(frozen=True)
class Call:
    """A function call by the model; ``arguments`` is JSON in a string."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


Part = str | Call


class ToolParser(Protocol):
    """Finds the tool calls in an answer that arrives in pieces."""

    def push(self, text: str) -> list[Part]:
        """Add text. The result is the text and the calls that are certain by now."""

    def flush(self) -> list[Part]:
        """No more text comes. The result is what was held back."""


def style_of(tokenizer: ChatTokenizer) -> Style | None:
    """How the chat template makes the model write calls, from how it renders a function; None where it renders none."""
    name = "look_up_the_weather"
    tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    try:
        shown = tokenizer.rendered([{"role": "user", "content": "Hi"}], [tool])
    except MonolaneError:
        return None
    if name not in shown:
        return None
    if OPEN in shown:
        return "hermes"
    return "mistral" if "[AVAILABLE_TOOLS]" in shown else "llama"


def parser_for(style: Style | None, names: Sequence[str], parallel: bool) -> ToolParser:
    """``names``: the functions that the request offers. Without them, or without a style, all of the answer is text."""
    if style is None or not names:
        return PlainParser()
    parser = JsonParser(
        "[" if style == "mistral" else "{", names, TaggedParser() if style == "hermes" else PlainParser()
    )
    return parser if parallel else FirstCallParser(parser)


class PlainParser:
    """Takes everything for text."""

    def push(self, text: str) -> list[Part]:
        return [text] if text else []

    def flush(self) -> list[Part]:
        return []


class TaggedParser:
    """Parses calls between tags, anywhere in the text. White space around a call is dropped."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while (found := self._held.find(CLOSE if self._inside else OPEN)) >= 0:
            before = self._held[:found]
            self._held = self._held[found + len(CLOSE if self._inside else OPEN) :]
            if self._inside:
                parts.append(parse_call(before) or f"{OPEN}{before}{CLOSE}")
                self._after_call = True
            else:
                parts += self._text(before.rstrip())
            self._inside = not self._inside
        if not self._inside:
            safe = len(self._held) - _beginning_of(OPEN, self._held)
            safe = len(self._held[:safe].rstrip())  # white space before a call is dropped, so it must wait
            parts += self._text(self._held[:safe])
            self._held = self._held[safe:]
        return parts

    def flush(self) -> list[Part]:
        held, self._held = self._held, ""
        if not self._inside:
            return self._text(held)
        call = parse_call(held)  # the answer ended within a call: complete but for its tag, or no call
        return [call or OPEN + held]

    def _text(self, text: str) -> list[Part]:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        return [text] if text else []


class JsonParser:
    """Parses an answer that is a call, or a list of calls, as a whole: Llama, Mistral, and small Qwens that forget
    their tags. Any other answer is left to another parser."""

    def __init__(self, opening: str, names: Sequence[str], otherwise: ToolParser) -> None:
        self._opening = opening
        self._names = frozenset(names)
        self._otherwise = otherwise
        self._held = ""
        self._decided = False

    def push(self, text: str) -> list[Part]:
        if self._decided:
            return self._otherwise.push(text)
        self._held += text
        beginning = self._held.lstrip()
        if not beginning or beginning.startswith(self._opening):
            return []
        return self._give_up()

    def flush(self) -> list[Part]:
        if not self._decided and (calls := self._calls()):
            return calls
        return [*self._give_up(), *self._otherwise.flush()]

    def _give_up(self) -> list[Part]:
        held, self._held, self._decided = self._held, "", True
        return self._otherwise.push(held)

    def _calls(self) -> list[Part]:
        value = parse_json(self._held)
        calls = [call_of(entry) for entry in (value if isinstance(value, list) else [value])]
        known = [call for call in calls if call is not None and call.name in self._names]
        return list(known) if len(known) == len(calls) else []


class FirstCallParser:
    """Drops everything after the first call, for clients that allow one call per answer."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._called = False

    def push(self, text: str) -> list[Part]:
        return self._until_call(self._parser.push(text))

    def flush(self) -> list[Part]:
        return self._until_call(self._parser.flush())

    def _until_call(self, parts: list[Part]) -> list[Part]:
        kept = []
        for part in parts:
            if not self._called:
                kept.append(part)
                self._called = isinstance(part, Call)
        return kept


def parse_call(text: str) -> Call | None:
    return call_of(parse_json(text))


def call_of(value: Any) -> Call | None:
    """A call written as {"name": …, "arguments": {…}}; Llama has "parameters" instead. None for anything else."""
    match value:
        case {"name": str(name), "arguments": arguments} | {"name": str(name), "parameters": arguments} if name:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return Call(name, text)
        case _:
            return None


def parse_json(text: str) -> Any:
    """The value of a JSON text; None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _beginning_of(tag: str, text: str) -> int:
    """The number of characters at the end of ``text`` that may be the beginning of ``tag``."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def call_grammar(style: Style, functions: Sequence[tuple[str, dict[str, Any]]], parallel: bool) -> str:
    """A Lark grammar for llguidance: the answer is at least one call of these functions, given as (name, schema)."""
    key = "parameters" if style == "llama" else "arguments"
    rules = []
    for i, (name, schema) in enumerate(functions):
        opening = _quoted('{"name": "' + name + '", "' + key + '": ')
        rules.append(f"call_{i}: {opening} args_{i} {_quoted('}')}")
        rules.append(f"args_{i}: %json {json.dumps(schema)}")
    call = "(" + " | ".join(f"call_{i}" for i in range(len(functions))) + ")"
    match style:
        case "hermes":
            one = f"{_quoted(OPEN + chr(10))} {call} {_quoted(chr(10) + CLOSE)}"
            more = f" ({_quoted(chr(10))} {one})*" if parallel else ""
            start = f"start: {one}{more}"
        case "mistral":
            more = f" ({_quoted(', ')} {call})*" if parallel else ""
            start = f"start: {_quoted('[')} {call}{more} {_quoted(']')}"
        case "llama":
            start = f"start: {call}"
    return "\n".join([start, *rules])


def _quoted(text: str) -> str:
    return json.dumps(text)
