"""Conversations as tokens, in which only the model's own template can write a control token.

A user may spell "<|im_end|>" and mean the text. So that the tokenizer does not take it for the end of the turn, such
words are cut between their letters: the pieces are tokenized one by one, and say the same to the model as text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from monolane.errors import UsageError
from monolane.model.load import Model

Message = Mapping[str, Any]

MOST_CHARS_PER_TOKEN = 64  # on average over a prompt; what is longer is not even tokenized


class Prompter:
    """Makes the prompts of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        tokenizer = model.tokenizer
        controls = [tokenizer.token_text(i) for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
        longest_first = sorted((text for text in controls if len(text) > 1), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def tokens(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The prompt that asks for an answer to the last of ``messages``."""
        chat, tokenizer = self._model.chat, self._model.tokenizer
        if chat is None:
            raise UsageError(f"{self._model.name} has no chat template.", "Use /v1/completions, which continues text.")
        cut = secrets.token_hex(16)  # nobody can know it, so nobody can write it
        rendered = chat.render(self._safe(list(messages), cut), tools=self._safe(list(tools), cut) or None)
        return [token for piece in rendered.split(cut) for token in tokenizer.encode(piece, special=False)]

    def _safe(self, value: Any, cut: str) -> Any:
        match value:
            case str():
                return self._controls.sub(lambda found: "".join(letter + cut for letter in found[0]), value)
            case list() | tuple():
                return [self._safe(item, cut) for item in value]
            case dict():
                return {self._safe(key, cut): self._safe(item, cut) for key, item in value.items()}
            case _:
                return value


def check_length(chars: int, context: int) -> None:
    """UsageError for a prompt that is too long to be worth counting its tokens."""
    if chars > MOST_CHARS_PER_TOKEN * context:
        raise UsageError(f"The prompt has {chars} characters, and the context holds {context} tokens.", "Shorten it.")


def chars_in(value: Any) -> int:
    """Characters in all the texts within plain data."""
    match value:
        case str():
            return len(value)
        case list() | tuple():
            return sum(chars_in(item) for item in value)
        case dict():
            return sum(len(key) + chars_in(item) for key, item in value.items())
        case _:
            return 0
