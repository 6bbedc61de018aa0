"""How long work tells whoever watches about itself. What it looks like is the watcher's business."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol


class Progress(Protocol):
    """One bar after another: ``start``, any number of ``advance``, ``done``; ``note`` may come at any time."""

    def start(self, total_bytes: int, label: str) -> None:
        """A new piece of work begins."""

    def advance(self, bytes_done: int) -> None:
        """So many bytes more are done; fewer than zero where work was lost and is done again."""

    def note(self, text: str) -> None:
        """One line the user should read."""

    def done(self) -> None:
        """The piece of work is over, whether it succeeded or not."""


class Silent:
    """Progress that nobody watches."""

    def start(self, total_bytes: int, label: str) -> None:
        pass

    def advance(self, bytes_done: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def done(self) -> None:
        pass


class LoggedNotes(Silent):
    """Progress that nobody watches, but whose notes somebody should read: in the log, which is stderr unless a program
    says otherwise. Each is told once."""

    def note(self, text: str) -> None:
        _log_once(text)


@cache
def _log_once(text: str) -> None:
    logging.getLogger("monolane").warning(text)


@contextmanager
def bar(progress: Progress, total_bytes: int, label: str) -> Iterator[None]:
    """One piece of work, so that its bar ends even when the work fails."""
    progress.start(total_bytes, label)
    try:
        yield
    finally:
        progress.done()
