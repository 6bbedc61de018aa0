"""The answer of a gpt-oss model, which is several messages on channels, as the one text that everything else expects.

    <|channel|>analysis<|message|>…<|end|>                                  <think>…</think>
    <|start|>assistant<|channel|>final<|message|>…<|return|>                …
    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{…}<|call|>     <tool_call>{…}</tool_call>

What follows a message's header up to its end is the message; all else is control. A commentary that is no call is for
the user, as the final channel is. An answer that begins with neither a channel nor a recipient, as one that a grammar
constrains does, is a message without a header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monolane.model.detokenize import TokenStream

if TYPE_CHECKING:
    from monolane.model.tokenizer import Tokenizer

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MARKS = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

_ON_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = " to="  # in a header, behind the role
_TO_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


def speaks_harmony(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary has all of the control tokens."""
    return all(tokenizer.token_id(mark) is not None for mark in _MARKS)


class HarmonyStream(TokenStream):
    """Detokenizes one answer as its tokens arrive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, skip_special=True)
        self._marks = {tokenizer.token_id(mark): mark for mark in _MARKS}
        self._header: str | None = None  # so far, while it is read
        self._given: int | None = None  # characters of the header that the prompt has, while nothing but text follows
        self._closing = ""  # what ends the message that is read

    def follow(self, prompt: Sequence[int]) -> None:
        """Continue after a prompt, which usually ends within the header of the assistant's message."""
        last = next((i for i in range(len(prompt) - 1, -1, -1) if self._marks.get(prompt[i]) == _START), len(prompt))
        self.push(prompt[last:])
        self._given = None if self._header is None or _CHANNEL in self._header else len(self._header)

    def push(self, ids: Sequence[int]) -> str:
        return "".join([self._text_of(token) for token in ids])

    def _text_of(self, token: int) -> str:
        mark = self._marks.get(token)
        if mark is None:
            text = super().push([token])
            if self._header is None:
                return text
            self._header += text
            begun = "" if self._given is None else self._header[self._given :]
            return "" if _RECIPIENT.startswith(begun[: len(_RECIPIENT)]) else self._without_header()
        self._given = None
        unfinished = super().flush() if self._header is None else ""
        if mark in (_CHANNEL, _CONSTRAIN):
            self._header = f"{self._header or ''} {mark}"
            return unfinished
        if mark == _MESSAGE:
            opening, self._closing = _around(self._header or "")
            self._header = None
            return unfinished + opening
        closing, self._closing = self._closing, ""
        self._header = "" if mark == _START else None
        return unfinished + closing

    def flush(self) -> str:
        return self._without_header() + super().flush()

    def _without_header(self) -> str:
        """What was taken for the beginning of a header; it is a message."""
        if self._header is None or self._given is None:
            return ""
        text, self._header, self._given = self._header[self._given :], None, None
        return text


def _around(header: str) -> tuple[str, str]:
    """What a message with this header begins and ends with."""
    if function := _TO_FUNCTION.search(header):
        return f'<tool_call>\n{{"name": {json.dumps(function[1])}, "arguments": ', "}\n</tool_call>\n"
    channel = _ON_CHANNEL.search(header)
    return ("<think>\n", "\n</think>\n\n") if channel and channel[1] == "analysis" else ("", "")
