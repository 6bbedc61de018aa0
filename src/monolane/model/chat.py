"""Turns a conversation into a prompt, with the chat template that came with the model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from monolane.errors import ModelFileError, UsageError
from monolane.model.template_meter import LimitError
from monolane.model.template_sandbox import MAX_SOURCE, RefusedError, Sandbox
from monolane.model.tokenizer import special_tokens_of

ROLES = ("system", "developer", "user", "assistant", "tool")

# Variables that the caller of a template decides; the client of a server may set others.
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})

_BAD_TEMPLATE = "Take the template from the model's own repository, or use plain completion instead of chat."
_SHOWN = 300  # characters of a template's error message that our message includes


@dataclass(frozen=True)
class Rendering:
    """How a conversation becomes a prompt, in the words of transformers.

    add_generation_prompt   open the turn of the assistant at the end
    continue_final_message  leave the last message open instead, so that the model goes on where it ends; None: where
                            it is the assistant's, and has no calls
    variables               further variables for the template, such as ``enable_thinking``
    """

    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    variables: Mapping[str, object] = field(default_factory=dict)

    def continues(self, last: Mapping[str, object]) -> bool:
        if self.continue_final_message is not None:
            return self.continue_final_message
        return last["role"] == "assistant" and not last.get("tool_calls")


_USUAL = Rendering()


class ChatTemplate:
    """A model's chat template. It is compiled at its first use, so that a broken one does not prevent completion."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """``special`` are variables that templates use: ``bos_token``, ``eos_token`` and so on."""
        self.source = source
        self._special = dict(special)
        self._sandbox = Sandbox()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        how: Rendering = _USUAL,
        protect: Callable[[Any], Any] = lambda plain: plain,
    ) -> str:
        """The prompt for ``messages`` as an OpenAI client sends them, special tokens included.

        The role "developer" becomes "system", which is the name that templates know. ``protect`` may change the
        messages and tools, as plain JSON data, before the template sees them: they are untrusted text.
        """
        plain = protect(_plain_messages(messages))
        goes_on = how.continues(plain[-1])
        end = secrets.token_hex(16)  # of the last message; random, so that no message can contain it
        if goes_on:
            plain[-1]["content"] += end
        extra = protect(_plain_json(dict(how.variables), "chat_template_kwargs"))
        if taken := _OURS & extra.keys():
            raise UsageError(f"chat_template_kwargs has {min(taken)}.", "It is a field of the request itself.")
        variables = {
            **self._special,
            **extra,
            "messages": plain,
            "tools": None if tools is None else protect(_plain_json(list(tools), "tools")),
            "documents": None,
            "add_generation_prompt": how.add_generation_prompt and not goes_on,
            "continue_final_message": goes_on,
        }
        rendered = self._render(variables)
        if not goes_on:
            return rendered
        before, found, _ = rendered.rpartition(end)
        if not found:
            raise UsageError(
                "The model's chat template leaves the last message out, so it cannot be continued.",
                "End with a message of the user.",
            )
        return before

    def _render(self, variables: Mapping[str, object]) -> str:
        try:
            return self._sandbox.render(self._compiled, variables)
        except ModelFileError:
            raise
        except RefusedError as error:
            raise UsageError(
                f"The model's chat template does not accept this conversation: {str(error)[:_SHOWN]}",
                "Change the messages accordingly.",
            ) from error
        except LimitError as error:
            raise ModelFileError(f"The model's chat template is out of bounds: {error}.", _BAD_TEMPLATE) from error
        except SecurityError as error:
            raise ModelFileError(
                f"The model's chat template does what templates must not: {str(error)[:_SHOWN]}", _BAD_TEMPLATE
            ) from error
        except Exception as error:  # a template is a program and may raise any exception
            raise ModelFileError(
                f"The model's chat template failed on this conversation: {type(error).__name__}: {str(error)[:_SHOWN]}",
                _BAD_TEMPLATE,
            ) from error

    @cached_property
    def _compiled(self) -> Template:
        try:
            return self._sandbox.load(self.source)
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"The model's chat template is broken in line {error.lineno}: {str(error.message)[:_SHOWN]}",
                _BAD_TEMPLATE,
            ) from error
        except (SyntaxError, RecursionError, MemoryError) as error:  # from Python's compiler
            raise ModelFileError("The model's chat template is nested too deeply.", _BAD_TEMPLATE) from error


def chat_template_from_folder(folder: Path, tokenizer_config: Mapping[str, object]) -> ChatTemplate | None:
    """The chat template of a Hugging Face folder; None where the model has none."""
    source = _source_in_folder(folder, tokenizer_config)
    return None if source is None else ChatTemplate(source, special_tokens_of(tokenizer_config))


def _source_in_folder(folder: Path, tokenizer_config: Mapping[str, object]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(MAX_SOURCE + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{path} is not readable text: {error}", _BAD_TEMPLATE) from error
    match tokenizer_config.get("chat_template"):
        case str(source):
            return source
        case list(named):
            templates = {t.get("name"): t.get("template") for t in named if isinstance(t, Mapping)}
            default = templates.get("default")
            return default if isinstance(default, str) else None
        case _:
            return None


def _plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Checked copies of the messages as templates expect them: content as text, tool arguments as objects."""
    if not messages:
        raise UsageError("The conversation is empty.", "Give at least one message with a role and a content.")
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain_message(message: Mapping[str, object], where: str) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise UsageError(f"{where} is not an object.", 'A message looks like {"role": "user", "content": "Hello"}.')
    role = message.get("role")
    if role not in ROLES:
        raise UsageError(f"{where}.role is {role!r}.", f"It must be one of {', '.join(ROLES)}.")
    plain: dict[str, object] = {"role": "system" if role == "developer" else role}
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = _plain_tool_calls(calls, f"{where}.tool_calls")
    content = message.get("content")
    may_be_empty = role == "assistant" or calls  # clients send null where a model has said nothing
    plain["content"] = "" if content is None and may_be_empty else _plain_text(content, f"{where}.content")
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise UsageError(f"{where}.{key} is not a text.", "Give a string, or leave it out.")
        plain[key] = value
    return plain


def _plain_text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise UsageError(f"{where} is missing or not a text.", "Give a string, or a list of text parts.")
    texts: list[str] = []
    for i, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise UsageError(
                    f"{where}[{i}] is not a text part.",
                    'The model reads text only: {"type": "text", "text": "…"}.',
                )
    return "".join(texts)


def _plain_tool_calls(calls: object, where: str) -> list[object]:
    """Clients send the arguments of a call as a string of JSON; templates expect an object. What a model wrote and is
    not JSON stays the string it is: the model that has to correct it should see it."""
    plain = _plain_json(calls, where)
    if not isinstance(plain, list):
        raise UsageError(f"{where} is not a list.", "Give a list of calls, or leave it out.")
    for i, call in enumerate(plain):
        match call:
            case {"function": {"name": str(), "arguments": str(arguments)} as function}:
                with suppress(ValueError, RecursionError):
                    function["arguments"] = json.loads(arguments or "{}")
            case {"function": {"name": str()}}:
                pass
            case _:
                raise UsageError(
                    f"{where}[{i}] has no function with a name.",
                    'A call looks like {"type": "function", "function": {"name": "…", "arguments": "{}"}}.',
                )
    return plain


def _plain_json(value: object, where: str) -> object:
    """A deep copy that consists of JSON's types only."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not plain JSON data: {error}", "Give lists, objects, strings and numbers."
        ) from error
