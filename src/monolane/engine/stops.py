"""Stop strings in a stream of text, wherever the borders between its pieces fall."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Lets text through, up to the first stop string.

    Text that may turn out to be the beginning of a stop string is held back until it is known. The first stop
    string to be *complete* wins (of several that end on the same character, the longest), so the result does not
    depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None  # the stop string that has come

    @property
    def matched(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """More text in; what is safe to show out. After a match, nothing comes out any more."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        starts = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            end, start = min(starts)
            self.found, self._held = text[start:end], ""
            return text[:start]
        safe = len(text) - self._unsure(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The text ends here: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held

    def _unsure(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0)
