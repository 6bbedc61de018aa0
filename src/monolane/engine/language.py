"""What a model's words are: conversations and texts as tokens, tokens as text.

In a conversation only the model's own template can write a control token. A user may spell "<|im_end|>" and mean the
text. So that the tokenizer does not take it for the end of the turn, such words are cut between their letters: the
pieces are tokenized one by one, and say the same to the model as text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from monolane.engine.params import check_token_ids
from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.model.load import Model

Message = Mapping[str, object]

MOST_CHARS_PER_TOKEN = 64  # on average over a prompt; what is longer is not even tokenized


class Language:
    """Tokenizer and chat template of one model. Safe to share between threads."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def rendered(self, messages: Sequence[Message], tools: Sequence[Message] = (), cut: str = "") -> str:
        """A conversation as the template writes it, up to where the answer begins; ``cut`` goes between the letters of
        control tokens that others wrote."""
        if self._model.chat is None:
            raise UsageError(
                f"{self._model.name} has no chat template.",
                "Use an instruction-tuned model, or plain completion (generate(), `monolane generate`, "
                "/v1/completions), which continues text.",
            )
        return self._model.chat.render(messages, tools=tools or None, protect=lambda plain: self._safe(plain, cut))

    def chat_tokens(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """The prompt that asks for an answer to the last of ``messages``."""
        cut = secrets.token_hex(16)  # nobody can know it, so nobody can write it
        pieces = self.rendered(messages, tools, cut).split(cut)
        # The template has written the special tokens itself; the tokenizer adds none.
        return [token for piece in pieces for token in self.text_tokens(piece, special=False)]

    def text_tokens(self, text: str, special: bool = True) -> list[int]:
        """A text just as it is, control tokens included; ``special`` adds those that a text begins and ends with."""
        return self._model.tokenizer.encode(text, special=special)

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens say, control tokens by their names."""
        check_token_ids("tokens", tokens, self._model.config.vocab)
        return self._model.tokenizer.decode(tokens, skip_special=False)

    def token_bytes(self, token: int) -> bytes:
        """What one token says: it may be a part of a character."""
        return self._model.tokenizer.token_bytes(token)

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        tokenizer = self._model.tokenizer
        words = [tokenizer.token_text(i) for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
        longest_first = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _safe(self, value: Any, cut: str) -> Any:
        """The same plain data, with every control token in its texts cut to pieces."""
        match value:
            case str():
                return self._controls.sub(lambda found: "".join(letter + cut for letter in found[0]), value)
            case list():
                return [self._safe(item, cut) for item in value]
            case dict():
                return {self._safe(key, cut): self._safe(item, cut) for key, item in value.items()}
            case _:
                return value


def check_length(prompt: Any, context: int) -> None:
    """UsageError for a prompt, text or plain data, that is too long to be worth counting its tokens."""
    if (chars := chars_in(prompt)) > MOST_CHARS_PER_TOKEN * context:
        raise UsageError(f"The prompt has {chars} characters, and the context holds {context} tokens.", "Shorten it.")


def chars_in(value: Any) -> int:
    """Characters in all the texts within plain data."""
    match value:
        case str():
            return len(value)
        case Sequence():
            return sum(chars_in(item) for item in value)
        case Mapping():
            return sum(chars_in(key) + chars_in(item) for key, item in value.items())
        case _:
            return 0
