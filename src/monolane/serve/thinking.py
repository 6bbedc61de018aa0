"""Tells what a model thinks from what it says: <think> … </think> at the beginning of an answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThinkingParser:
    """Splits an answer that arrives in pieces. ``inside``: the prompt has opened the thinking already."""

    def __init__(self, inside: bool = False) -> None:
        self._held = ""
        self._state = "thinking" if inside else "before"
        self._at_start = True  # of the thoughts or the words: blank lines before them belong to neither

    def push(self, text: str) -> tuple[str, str]:
        """Add text. The result is what was thought and what was said, as far as it is certain."""
        self._held += text
        thought = ""
        if self._state == "before":
            begun = self._held.lstrip()
            if OPEN.startswith(begun) and begun != OPEN:
                return "", ""
            if begun.startswith(OPEN):
                self._state, self._held = "thinking", begun.removeprefix(OPEN)
            else:
                self._state, self._at_start = "saying", False
        if self._state == "thinking":
            thoughts, close, rest = self._held.partition(CLOSE)
            sure = len(thoughts) if close else len(thoughts) - _overlap(thoughts)
            thought = self._without_blanks(thoughts[:sure])
            self._held = rest if close else thoughts[sure:]
            if not close:
                return thought, ""
            self._state, self._at_start = "saying", True
        said, self._held = self._without_blanks(self._held), ""
        return thought, said

    def _without_blanks(self, text: str) -> str:
        text = text.lstrip() if self._at_start else text
        self._at_start = self._at_start and not text
        return text

    def flush(self) -> tuple[str, str]:
        """No more text comes."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)


def _overlap(text: str) -> int:
    """How many characters at the end of a text may be the beginning of CLOSE."""
    return next((size for size in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:size])), 0)
