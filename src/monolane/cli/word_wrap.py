"""Breaks the lines of a text between words, while the text is still being written."""

from __future__ import annotations

import re

from rich.cells import cell_len

_FENCE = re.compile(r"\s*(```|~~~)")


class WordWrap:
    """A word is kept until its end is known. Lines of code blocks stay whole, as a terminal shows them."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._word = ""  # not written yet
        self._line = ""  # of the text, up to the word
        self._column = 0  # of the terminal
        self._in_code = False

    def add(self, text: str) -> str:
        """What can be written now that ``text`` has come."""
        written = []
        for piece in re.split(r"(\s)", text):
            if piece.isspace():
                written.append(self._end_word() + self._space(piece))
            else:
                self._word += piece
        return "".join(written)

    def rest(self) -> str:
        """The last word, when nothing more will come."""
        return self._end_word()

    def _end_word(self) -> str:
        word, self._word = self._word, ""
        width = cell_len(word)
        self._line += word
        in_code = self._in_code or _FENCE.match(self._line)
        if word and not in_code and self._column > 0 and self._column + width > self._columns:
            self._column = width
            return f"\n{word}"
        self._column += width
        return word

    def _space(self, space: str) -> str:
        if space == "\n":
            self._in_code ^= _FENCE.match(self._line) is not None
            self._line, self._column = "", 0
        else:
            self._line += space
            self._column += 1
        return space
