"""Turns the string of a token in a vocabulary into the bytes of UTF-8 that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from monolane.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Spelling:
    """How one vocabulary represents bytes, read from the decoder in its tokenizer.json."""

    byte_level: bool = False  # one printable character per byte, as in GPT-2
    byte_fallback: bool = False  # "<0x0A>" is the byte 10, as in SentencePiece
    replacements: tuple[tuple[str, str], ...] = ()
    leading_spaces: int = 0  # spaces that encoding adds before a text and decoding removes

    @classmethod
    def of_decoder(cls, decoder: Any) -> Spelling:
        """Read the steps of a decoder of the ``tokenizers`` library."""
        if decoder is None:
            raise UnsupportedModelError("The tokenizer has no decoder, so its tokens cannot be turned into text.")
        rule: dict[str, Any] = {}
        replacements: list[tuple[str, str]] = []
        for step in _steps(json.loads(decoder.__getstate__())):
            match step:
                case {"type": "ByteLevel"}:
                    rule["byte_level"] = True
                case {"type": "ByteFallback"}:
                    rule["byte_fallback"] = True
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    replacements.append((old, new))
                case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                    rule["leading_spaces"] = start
                case {"type": "Fuse"}:
                    pass
                case _:
                    raise UnsupportedModelError(
                        f"The tokenizer decodes by a rule we do not know: {json.dumps(step)}.",
                        "Byte-level and SentencePiece tokenizers (Llama, Mistral, Qwen, SmolLM) are supported.",
                    )
        return cls(replacements=tuple(replacements), **rule)

    def bytes_of(self, token: str) -> bytes:
        if self.byte_level:
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # a token that is plain text, such as an unused "[PAD 1]"
                return token.encode("utf-8")
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8")


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _byte_level_alphabet() -> dict[str, int]:
    """Printable Latin-1 bytes are their own characters; the others are, in order, the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_level_alphabet()
