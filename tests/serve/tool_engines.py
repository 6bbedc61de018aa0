"""Synthetic engines that answer with predefined tool calls."""

from __future__ import annotations

from typing import Any

from fake_model import fake_model, with_chat
from monolane.engine.async_engine import AsyncEngine
from monolane.model.chat import ChatTemplate
from synthetic_engine import synthetic_engine

# What the templates of our families make of tools, in short.
_TALK = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{{ message.tool_calls|tojson if message.tool_calls }}{% endfor %}[assistant]"
)
TEMPLATES = {
    "hermes": "{% if tools %}<tools>{{ tools|tojson }}</tools> Answer with <tool_call>.{% endif %}" + _TALK,
    "llama": "{% if tools %}Respond with JSON: {{ tools|tojson }}{% endif %}" + _TALK,
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{{ tools|tojson }}[/AVAILABLE_TOOLS]{% endif %}" + _TALK,
}

WEATHER: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = '{"name": "weather", "%s": {"city": "Paris"}}'
CALLS = {
    "hermes": "<tool_call>\n" + CALL % "arguments" + "\n</tool_call>",
    "llama": CALL % "parameters",
    "mistral": "[" + CALL % "arguments" + "]",
}


def tool_engine(style: str, answer: str, context: int = 4096) -> AsyncEngine:
    model = with_chat(fake_model(), ChatTemplate(TEMPLATES[style], {}))
    return synthetic_engine(model=model, answer=answer + "<eos>", context=context)
