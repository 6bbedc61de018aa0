"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on, up to the first stop string.

    Text that may be the beginning of a stop string is held back until that is decided. The first stop string to be
    *complete* counts (of several that end with the same character, the longest), so the result does not depend on how
    the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    @property
    def matched(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """Add text. The result is the text that is certain to come before a stop string; after a match it is empty."""
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
        """The text has ended. The result is what was held back."""
        held, self._held = self._held, ""
        return held

    def _unsure(self, text: str) -> int:
        """The length of the longest suffix of ``text`` that is a prefix of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0)
