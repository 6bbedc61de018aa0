"""Tool calls: how a model's family writes them, and grammars that force them. ``tool_parser.py`` finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from monolane.engine.chat_tokenizer import ChatTokenizer
from monolane.errors import MonolaneError
from monolane.serve.tool_parser import CLOSE, OPEN

Style = Literal["hermes", "llama", "mistral"]

_OF_ROOT = ("$defs", "definitions", "x-guidance")


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


def call_grammar(
    style: Style,
    functions: Sequence[tuple[str, Mapping[str, Any]]],
    parallel: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """A Lark grammar for llguidance: at least one call of these functions, given as (name, schema); or, where there is
    a schema for the ``answer``, JSON that follows it."""
    key = "parameters" if style == "llama" else "arguments"
    rules = []
    for i, (name, schema) in enumerate(functions):
        if answer is None or style == "hermes":
            opening = _quoted('{"name": "' + name + '", "' + key + '": ')
            rules.append(f"call_{i}: {opening} args_{i} {_quoted('}')}")
            rules.append(f"args_{i}: %json {json.dumps(schema)}")
        else:  # both begin with a brace: the lexer can keep them apart only where both are JSON by the same rules
            rules.append(f"call_{i}: %json {json.dumps(_call_schema(name, key, schema))}")
    call = "(" + " | ".join(f"call_{i}" for i in range(len(functions))) + ")"
    match style:
        case "hermes":
            one = f"{_quoted(OPEN + chr(10))} {call} {_quoted(chr(10) + CLOSE)}"
            more = f" ({_quoted(chr(10))} {one})*" if parallel else ""
            calls = f"{one}{more}"
        case "mistral":
            more = f" ({_quoted(', ')} {call})*" if parallel else ""
            calls = f"{_quoted('[')} {call}{more} {_quoted(']')}"
        case "llama":
            calls = call
    if answer is None:
        return "\n".join([f"start: {calls}", *rules])
    return "\n".join(["start: calls | answer", f"calls: {calls}", f"answer: %json {json.dumps(answer)}", *rules])


def _call_schema(name: str, key: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call of a function. References lead to the definitions of the root, so those come along."""
    arguments = {word: value for word, value in schema.items() if word not in _OF_ROOT}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
    } | {word: schema[word] for word in _OF_ROOT if word in schema}


def _quoted(text: str) -> str:
    return json.dumps(text)
