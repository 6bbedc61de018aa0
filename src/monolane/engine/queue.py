"""The waiting queue: first come, first served, up to a limit."""

from __future__ import annotations

from monolane.engine.answer import Answer
from monolane.errors import QueueFullError


class WaitingQueue:
    """Requests that wait. Each is told its position whenever that changes; 1 is the next to run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: list[Answer] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, answer: Answer) -> None:
        if len(self._waiting) >= self.limit:
            raise QueueFullError(f"{self.limit} requests are waiting already.", "Try again in a moment.")
        self._waiting.append(answer)
        answer.queued(len(self._waiting))

    def leave(self, answer: Answer) -> None:
        self._waiting.remove(answer)
        self._tell_positions()

    def next(self) -> Answer | None:
        """Take the request that has waited longest out of the queue; None where the queue is empty."""
        if not self._waiting:
            return None
        first = self._waiting.pop(0)
        self._tell_positions()
        return first

    def leave_all(self) -> list[Answer]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _tell_positions(self) -> None:
        for position, answer in enumerate(self._waiting, 1):
            answer.queued(position)
