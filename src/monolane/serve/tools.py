"""Functions that a model may call: how its family writes a call, and how calls are found in what it wrote."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from monolane.engine.chat_tokenizer import ChatTokenizer
from monolane.errors import MonolaneError

Style = Literal["hermes", "llama", "mistral"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"  # hermes: what Qwen writes around each call


@dataclass(frozen=True)
class Call:
    """A function that the model wants called; ``arguments`` is a JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


Part = str | Call


class Reader(Protocol):
    """Finds the calls in an answer, however it is cut into pieces."""

    def push(self, text: str) -> list[Part]:
        """More of the answer in; what is known by now out."""

    def flush(self) -> list[Part]:
        """No more comes: what was held back."""


def style_of(tokenizer: ChatTokenizer) -> Style | None:
    """How a template tells its model to write calls, by what it makes of a function; None: it leaves functions out."""
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


def reader_for(style: Style | None, names: Sequence[str], parallel: bool) -> Reader:
    """``names``: the functions that were offered; without them, or a style, everything is text."""
    if style is None or not names:
        return PlainReader()
    reader = JsonReader(
        "[" if style == "mistral" else "{", names, TaggedReader() if style == "hermes" else PlainReader()
    )
    return reader if parallel else FirstCall(reader)


class PlainReader:
    def push(self, text: str) -> list[Part]:
        return [text] if text else []

    def flush(self) -> list[Part]:
        return []


class TaggedReader:
    """Calls between tags, anywhere in the text. White space around them belongs to them."""

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
            safe = len(self._held[:safe].rstrip())  # white space may turn out to lead to a call
            parts += self._text(self._held[:safe])
            self._held = self._held[safe:]
        return parts

    def flush(self) -> list[Part]:
        held, self._held = self._held, ""
        if not self._inside:
            return self._text(held)
        call = parse_call(held)  # it ended within a call: whole but for its tag, or not a call at all
        return [call or OPEN + held]

    def _text(self, text: str) -> list[Part]:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        return [text] if text else []


class JsonReader:
    """The answer as a whole is a call, or a list of them: Llama, Mistral, and small Qwens that forget their tags.
    Anything else is left to another reader."""

    def __init__(self, opening: str, names: Sequence[str], otherwise: Reader) -> None:
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


class FirstCall:
    """Where a client wants one call at a time: the first, and nothing after it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._called = False

    def push(self, text: str) -> list[Part]:
        return self._until_call(self._reader.push(text))

    def flush(self) -> list[Part]:
        return self._until_call(self._reader.flush())

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
    """{"name": …, "arguments": {…}}; Llama says "parameters"."""
    match value:
        case {"name": str(name), "arguments": arguments} | {"name": str(name), "parameters": arguments} if name:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return Call(name, text)
        case _:
            return None


def parse_json(text: str) -> Any:
    """None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _beginning_of(tag: str, text: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def call_grammar(style: Style, functions: Sequence[tuple[str, dict[str, Any]]], parallel: bool) -> str:
    """A grammar, as llguidance reads it, in which an answer is at least one call of these (name, schema) functions."""
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
