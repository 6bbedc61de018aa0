"""From tokens to text while the tokens arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolane.model.tokenizer import Tokenizer


class TokenStream:
    """Detokenizes one answer as its tokens arrive, in constant time per token."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces_to_drop = tokenizer.leading_spaces_dropped

    def follow(self, prompt: Sequence[int]) -> None:
        """Continue after a prompt. The encoder adds spaces only at the start of the whole text, so once the prompt has
        any text, a space before the answer is the model's own and is kept."""
        for token in prompt:
            if not self._spaces_to_drop:
                break
            self._visible_bytes([token])

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete. The bytes of an incomplete character are kept for the next call."""
        return self._utf8.decode(self._visible_bytes(ids))

    def _visible_bytes(self, ids: Sequence[int]) -> bytes:
        tokenizer = self._tokenizer
        kept = [i for i in ids if not (self._skip_special and tokenizer.is_special(i))]
        data = b"".join([tokenizer.token_bytes(i) for i in kept])
        while self._spaces_to_drop and data:
            if data.startswith(b" "):
                data = data[1:]
                self._spaces_to_drop -= 1
            else:
                self._spaces_to_drop = 0
        return data

    def flush(self) -> str:
        """The rest after the last token: U+FFFD for an incomplete character, usually nothing."""
        return self._utf8.decode(b"", final=True)
