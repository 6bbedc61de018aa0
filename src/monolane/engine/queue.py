"""Those who wait: first come, first served, and no more than may wait."""

from __future__ import annotations

from monolane.engine.answer import Answer
from monolane.errors import QueueFullError


class WaitingQueue:
    """Every answer in it knows its position, which is 1 for the next."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: list[Answer] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, answer: Answer) -> None:
        if len(self._waiting) >= self.limit:
            raise QueueFullError(f"{self.limit} requests are waiting already.", "Try again in a moment.")
        self._waiting.append(answer)
        answer.moved(len(self._waiting))

    def leave(self, answer: Answer) -> None:
        self._waiting.remove(answer)
        self._tell()

    def next(self) -> Answer | None:
        """The one whose turn has come, who leaves the queue."""
        if not self._waiting:
            return None
        first = self._waiting.pop(0)
        self._tell()
        return first

    def leave_all(self) -> list[Answer]:
        everybody, self._waiting = self._waiting, []
        return everybody

    def _tell(self) -> None:
        for position, answer in enumerate(self._waiting, 1):
            answer.moved(position)
