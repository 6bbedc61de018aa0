"""Finds the tool calls in an answer that arrives in pieces.

Models do not keep to the form that their chat template shows them. Whatever form a call comes in, it is a call:

    <tool_call>{"name": …, "arguments": {…}}</tool_call>    with tags: Hermes and Qwen
    {"name": …, "parameters": {…}}                          at the beginning of a line: Llama, and who forgets its tags
    [{"name": …, "arguments": {…}}, …]                      in a list: Mistral
    ```json                                                 in a code block: Qwen2.5-Coder
    {{"name": …, "arguments": {…}}}                         with doubled braces: Qwen2.5-Coder, after results

JSON without tags is a call only where it names a function that the request offers; everything else is text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"


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

    def flush(self, cut: bool = False) -> list[Part]:
        """No more text comes. The result is what was held back. ``cut``: the answer was cut off at its longest; a call
        that was cut off with it is no text, and is left out."""


def parser_for(names: Sequence[str], parallel: bool) -> ToolParser:
    """``names``: the functions that the request offers. Without them, all of the answer is text."""
    if not names:
        return PlainParser()
    return CallParser(names) if parallel else FirstCallParser(CallParser(names))


class PlainParser:
    """Takes everything for text."""

    def push(self, text: str) -> list[Part]:
        return [text] if text else []

    def flush(self, cut: bool = False) -> list[Part]:
        return []


_OPENING = re.compile(rf"{OPEN}\s*|^[ \t]*(?:```[ \t]*\w*[ \t]*\n\s*)?(?=[\[{{])", re.MULTILINE)
# The end of a text that may become an opening: a line so far empty, or the first line of a code block.
_MAYBE = re.compile(r"^[ \t]*(?:`{1,2}|```[ \t]*\w*[ \t]*(?:\n\s*)?)?\Z", re.MULTILINE)
_CLOSINGS = (CLOSE, "```", ",", ";", "}", "]")  # what may follow a call, and is part of its form
_BEFORE_KEY = re.compile(r"[\s\[{]*")
_NAMED = re.compile(r'[\s\[{]*"name"\s*:\s*"([^"]*)("?)')
_KEYS = ('"name"', '"arguments"', '"parameters"', '"type"', '"function"')
_decoder = json.JSONDecoder()


class CallParser:
    """Holds text back from where a call may begin until it is one, or cannot become one. White space around calls is
    dropped. What is found does not depend on the pieces that the text arrives in."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._at_line_start = True  # where what is held begins
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        self._held += text
        return _joined(self._parts(final=False, cut=False))

    def flush(self, cut: bool = False) -> list[Part]:
        return _joined(self._parts(final=True, cut=cut))

    def _parts(self, final: bool, cut: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held:
            if self._after_call:
                if not self._drop_closings(final):
                    break
                continue
            opening = self._search(_OPENING)
            if opening is None:
                parts += self._emit(len(self._held) if final else self._safe())
                break
            before = len(self._held[: opening.start()].rstrip())
            calls, end = self._read(opening, final, cut)
            if calls:
                parts += [*self._emit(before), *calls]
                self._held, self._after_call = self._held[end - before :], True
            elif calls is None and not final:
                parts += self._emit(before)
                break
            elif calls is None and cut and self._begins_call(opening):
                parts += self._emit(before)
                self._held = ""
            else:  # no call: go on behind its first character
                parts += self._emit(opening.start() + 1)
        return parts

    def _emit(self, chars: int) -> list[Part]:
        text, self._held = self._held[:chars], self._held[chars:]
        if not text:
            return []
        self._at_line_start = False
        return [text]

    def _search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first match of a pattern in which ^ is the beginning of a line, also of one that was begun before."""
        found = pattern.search(self._held)
        if found and found.start() == 0 and not self._at_line_start and not self._held.startswith(OPEN):
            found = pattern.search(self._held, 1)
        return found

    def _safe(self) -> int:
        """The number of characters that are certainly text, where nothing has opened a call."""
        maybe = self._search(_MAYBE)
        tag = len(self._held) - _beginning_of(OPEN, self._held)
        return len(self._held[: min(tag, maybe.start() if maybe else tag)].rstrip())

    def _read(self, opening: re.Match[str], final: bool, cut: bool) -> tuple[list[Call] | None, int]:
        """The calls behind an opening, none where there is no call; None: it cannot be known yet. And their end."""
        tagged = opening[0].startswith(OPEN)
        text = self._held[opening.end() :]
        if not self._may_be_call(text, tagged):
            return [], 0
        if not tagged:
            decoded = _decode(text) or (_closed(text) if final and not cut else None)
            if decoded is None:
                return None, 0
            value, end = decoded
            calls = _calls_of(value)
            return calls if all(call.name in self._names for call in calls) else [], opening.end() + end
        close = text.find(CLOSE)
        if close < 0 and not final:
            return None, 0
        inside = text if close < 0 else text[:close]
        calls = _calls_in(inside)
        if not calls and not (close < 0 and cut) and (decoded := _closed(inside)) is not None:
            calls = _calls_of(decoded[0])
        return calls or (None if close < 0 else []), opening.end() + len(inside)

    def _may_be_call(self, text: str, tagged: bool) -> bool:
        """Whether a text that JSON may begin is, as far as it goes, a call."""
        key = text[_BEFORE_KEY.match(text).end() :]  # type: ignore[union-attr]  # it matches anything
        if not any(word.startswith(key[: len(word)]) for word in _KEYS):
            return False
        named = _NAMED.match(text)
        return tagged or named is None or not named[2] or named[1] in self._names

    def _begins_call(self, opening: re.Match[str]) -> bool:
        named = _NAMED.match(self._held, opening.end())
        return opening[0].startswith(OPEN) or (
            named is not None and any(name.startswith(named[1]) for name in self._names)
        )

    def _drop_closings(self, final: bool) -> bool:
        """Drop what belongs to the form of the call before; False where more text must come first."""
        self._held = self._held.lstrip()
        held = self._held
        for closing in _CLOSINGS:
            if held.startswith(closing) and not (closing == "```" and held[3:4].isalnum()):  # that is the next block
                if held == "```" and not final:
                    return False
                self._held = held[len(closing) :]
                return True
        if not final and any(closing.startswith(held) for closing in _CLOSINGS):  # also where nothing is held
            return False
        self._after_call, self._at_line_start = False, True
        return True


class FirstCallParser:
    """Drops everything after the first call, for clients that allow one call per answer."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._called = False

    def push(self, text: str) -> list[Part]:
        return self._until_call(self._parser.push(text))

    def flush(self, cut: bool = False) -> list[Part]:
        return self._until_call(self._parser.flush(cut))

    def _until_call(self, parts: list[Part]) -> list[Part]:
        kept = []
        for part in parts:
            if not self._called:
                kept.append(part)
                self._called = isinstance(part, Call)
        return kept


def _joined(parts: list[Part]) -> list[Part]:
    """The same, with adjacent texts as one."""
    result: list[Part] = []
    for part in parts:
        if result and isinstance(part, str) and isinstance(before := result[-1], str):
            result[-1] = before + part
        else:
            result.append(part)
    return result


def parse_json(text: str) -> Any:
    """The value of a JSON text; None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _decode(text: str) -> tuple[Any, int] | None:
    """The JSON value that a text begins with, and where it ends; None where it is not complete or not JSON."""
    start = len(text) - len(text.lstrip())
    doubled = text.startswith("{{", start)
    try:
        value, end = _decoder.raw_decode(text, start + doubled)
    except (ValueError, RecursionError):
        return None
    if doubled:
        end += len(text[end:]) - len(text[end:].lstrip())
        return (value, end + 1) if text.startswith("}", end) else None
    return value, end


def _closed(text: str) -> tuple[Any, int] | None:
    """The JSON value that a whole text is but for a brace or two at its end, which small models forget."""
    text = text.rstrip()
    found = [decoded for missing in ("}", "}}") if (decoded := _decode(text + missing)) and decoded[1] > len(text)]
    return (found[0][0], len(text)) if found else None


def _calls_in(text: str) -> list[Call]:
    """The calls that a text consists of; none where it has anything else but a brace too many."""
    calls: list[Call] = []
    while text := text.strip(" \t\r\n,;"):
        if (decoded := _decode(text)) is None or not (found := _calls_of(decoded[0])):
            return calls if not text.strip("]} \n") else []
        calls, text = calls + found, text[decoded[1] :]
    return calls


def _calls_of(value: Any) -> list[Call]:
    """The calls in a JSON value: one call, or a list that has nothing but calls."""
    calls = [_call_of(entry) for entry in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def _call_of(value: Any) -> Call | None:
    """A call written as {"name": …, "arguments": {…}}; Llama has "parameters", and others put both into "function"."""
    match value:
        case {"name": str(name), "arguments": arguments} | {"name": str(name), "parameters": arguments} if name:
            return Call(name, _arguments(arguments))
        case {"function": dict(function)}:
            return _call_of(function)
        case _:
            return None


def _arguments(value: Any) -> str:
    """Arguments as JSON in a string; some models write that string themselves."""
    if isinstance(value, str) and isinstance(parse_json(value), dict):
        return value
    return json.dumps({} if value is None else value, ensure_ascii=False)


def _beginning_of(tag: str, text: str) -> int:
    """The number of characters at the end of ``text`` that may be the beginning of ``tag``."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
