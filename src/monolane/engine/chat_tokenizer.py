"""A model's tokenizer with its chat template: conversations and texts to token ids, and back.

In a conversation only the model's own chat template can write control tokens. A user may write "<|im_end|>" and mean
the text. So that the tokenizer does not take it for the end of the turn, control tokens in messages are split between
their characters, and the pieces are tokenized separately: the model reads the same characters, as ordinary text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from monolane.engine.params import check_token_ids
from monolane.errors import ContextLengthError, UsageError
from monolane.model.chat import ChatTemplate, Rendering

if TYPE_CHECKING:
    from monolane.model.generation_config import SuggestedSampling
    from monolane.model.load import Model

Message = Mapping[str, object]

# What comes before the text before the gap, before the text after it, and before what is to be filled in, by family.
INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)

MAX_CHARS_PER_TOKEN = 64  # on average over a prompt that fits its context; a longer text is refused untokenized


class ChatTokenizer:
    """The tokenizer and the chat template of one model. Threads may share it."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def can_chat(self) -> bool:
        """A model without a chat template continues text, and nothing else."""
        return self._model.chat is not None

    @property
    def speaks_harmony(self) -> bool:
        """Answers have what the model thinks before what it says."""
        return self._model.tokenizer.speaks_harmony

    @property
    def sampling(self) -> SuggestedSampling:
        """As the model's makers suggest."""
        return self._model.sampling

    def rendered(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), how: Rendering | None = None, cut: str = ""
    ) -> str:
        """A conversation as the chat template renders it, up to where the answer begins. ``cut`` is put between the
        characters of control tokens in the messages."""
        template, how = chat_template(self._model), how or Rendering()
        return template.render(messages, tools=tools or None, how=how, protect=lambda plain: self._split(plain, cut))

    def chat_tokens(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), how: Rendering | None = None
    ) -> list[int]:
        """The prompt for an answer to the last of ``messages``, or for the rest of it, where it is the assistant's."""
        cut = secrets.token_hex(16)  # random, so that no message can contain it
        pieces = self.rendered(messages, tools, how, cut).split(cut)
        # The template has rendered the special tokens; the tokenizer must add none.
        return [token for piece in pieces for token in self.text_tokens(piece, special=False)]

    def text_tokens(self, text: str, special: bool = True) -> list[int]:
        """A text as it is, control tokens included. ``special`` adds the tokens that begin and end a text."""
        return self._model.tokenizer.encode(text, special=special)

    @property
    def can_infill(self) -> bool:
        find = self._model.tokenizer.token_id
        return any(all(find(word) is not None for word in words) for words in INFILL)

    def infill_tokens(self, before: str, after: str) -> list[int]:
        """The prompt for what lies between two texts; UsageError where the model has no tokens for that."""
        for words in INFILL:
            ids = [self._model.tokenizer.token_id(word) for word in words]
            if None not in ids:
                pieces = [self.text_tokens(text, special=False) for text in (before, after, "")]
                marked = [token for mark, piece in zip(ids, pieces, strict=True) for token in (mark, *piece)]
                return [*self.text_tokens(""), *(token for token in marked if token is not None)]
        raise UsageError(
            f"suffix is given, and {self._model.name} has no tokens to fill in the middle.", "Leave it out."
        )

    def info(self) -> dict[str, Any]:
        """What a tokenizer_config.json says, as far as clients that tokenize need it."""
        chat = self._model.chat
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._model.tokenizer.special_tokens,
            "vocab_size": self._model.tokenizer.vocab_size,
            "chat_template": None if chat is None else chat.source,
        }

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with control tokens by their names."""
        check_token_ids("tokens", tokens, self._model.config.vocab)
        return self._model.tokenizer.decode(tokens, skip_special=False)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character."""
        return self._model.tokenizer.token_bytes(token)

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        tokenizer = self._model.tokenizer
        words = [tokenizer.token_text(i) for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
        longest_first = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _split(self, value: Any, cut: str) -> Any:
        """The same plain data, with ``cut`` between the characters of every control token in its strings."""
        match value:
            case str():
                return self._controls.sub(lambda found: "".join(char + cut for char in found[0]), value)
            case list():
                return [self._split(item, cut) for item in value]
            case dict():
                return {self._split(key, cut): self._split(item, cut) for key, item in value.items()}
            case _:
                return value


def chat_template(model: Model) -> ChatTemplate:
    """The chat template of a model; UsageError where it has none."""
    if model.chat is None:
        raise UsageError(
            f"{model.name} has no chat template.",
            "Use an instruction-tuned model, or plain completion (generate(), `monolane generate`, "
            "/v1/completions), which continues text.",
        )
    return model.chat


def check_length(prompt: Any, context: int) -> None:
    """UsageError for a prompt, text or plain data, that is too long to be worth tokenizing."""
    if (chars := chars_in(prompt)) > MAX_CHARS_PER_TOKEN * context:
        text = f"The prompt has {chars} characters, and the context holds {context} tokens."
        raise ContextLengthError(text, "Shorten it.", context, chars, "characters")


def chars_in(value: Any) -> int:
    """The number of characters in all strings of plain data."""
    match value:
        case str():
            return len(value)
        case Sequence():
            return sum(chars_in(item) for item in value)
        case Mapping():
            return sum(chars_in(key) + chars_in(item) for key, item in value.items())
        case _:
            return 0
