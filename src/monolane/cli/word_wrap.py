"""Breaks the lines of a text between words, while the text is still being written."""

from __future__ import annotations

import re

from rich.cells import cell_len

_FENCE = re.compile(r"\s*(```|~~~)")


class WordWrap:
    """A word is kept until its end is known, and the space before it as long. Lines of code blocks stay whole, as a
    terminal shows them."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._space = ""  # neither of them is written yet
        self._word = ""
        self._line = ""  # what is written of the text's line
        self._column = 0  # of the terminal
        self._in_code = False

    def add(self, text: str) -> str:
        """What can be written now that ``text`` has come."""
        written = []
        for piece in re.split(r"(\s)", text):
            if piece == "\n":
                written.append(self.rest() + "\n")
                self._in_code ^= _FENCE.match(self._line) is not None
                self._line, self._space, self._column = "", "", 0
            elif piece.isspace():
                written.append(self.rest())
                self._space += piece
            else:
                self._word += piece
        return "".join(written)

    def rest(self) -> str:
        """The word so far: its end has come, or nothing more will."""
        if not self._word:
            return ""
        space, word = self._space, self._word
        self._space = self._word = ""
        self._line += space + word
        whole = self._in_code or _FENCE.match(self._line)
        if self._column and not whole and self._column + len(space) + cell_len(word) > self._columns:
            self._column = cell_len(word)
            return f"\n{word}"
        self._column += len(space) + cell_len(word)
        return space + word
