"""The waiting queue: first come, first served, up to a limit. One request at a time has the machine."""

from __future__ import annotations

from typing import Protocol

from monolane.engine.answer import Answer
from monolane.errors import QueueFullError


class Runner(Protocol):
    """An engine's scheduler, as the queue sees it."""

    @property
    def can_run(self) -> bool:
        """Whether its engine process is ready."""

    def run(self, answer: Answer) -> None:
        """It is this request's turn."""


class WaitingQueue:
    """The requests that wait for the machine, those of all engines that share it. Two engines that decode at once would
    take the cores, or the GPU, from each other. Each request is told its position whenever that changes; 1 is the next
    to run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = False  # a request has the machine
        self._waiting: list[tuple[Runner, Answer]] = []

    def waiting_for(self, runner: Runner) -> int:
        """How many requests of that engine wait."""
        return sum(owner is runner for owner, _ in self._waiting)

    def join(self, runner: Runner, answer: Answer) -> None:
        """Run a request at once, or let it wait. QueueFullError where too many do."""
        if runner.can_run and not self._taken:
            self._taken = True
            runner.run(answer)
            return
        if len(self._waiting) >= self.limit:
            raise QueueFullError(f"{self.limit} requests are waiting already.", "Try again in a moment.")
        self._waiting.append((runner, answer))
        answer.queued(len(self._waiting))

    def leave(self, answer: Answer) -> None:
        self._waiting = [entry for entry in self._waiting if entry[1] is not answer]
        self._tell_positions()

    def leave_all(self, runner: Runner) -> list[Answer]:
        """Take all requests of an engine out of the queue."""
        leaving = [answer for owner, answer in self._waiting if owner is runner]
        self._waiting = [entry for entry in self._waiting if entry[0] is not runner]
        self._tell_positions()
        return leaving

    def freed(self) -> None:
        """The request that ran is over."""
        self._taken = False
        self.advance()

    def advance(self) -> None:
        """Run the request that has waited longest, of those whose engine is ready."""
        if self._taken:
            return
        for index, (runner, answer) in enumerate(self._waiting):
            if runner.can_run:
                del self._waiting[index]
                self._taken = True
                self._tell_positions()
                runner.run(answer)
                return

    def _tell_positions(self) -> None:
        for position, (_, answer) in enumerate(self._waiting, 1):
            answer.queued(position)
