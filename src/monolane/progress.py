"""The interface through which long work (downloads, loading) reports its progress."""

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
        """So many more bytes are done; a negative number where work was lost and is done again."""

    def note(self, text: str) -> None:
        """One line the user should read."""

    def done(self) -> None:
        """The piece of work has ended, whether it succeeded or not."""


class Silent:
    """Ignores everything."""

    def start(self, total_bytes: int, label: str) -> None:
        pass

    def advance(self, bytes_done: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def done(self) -> None:
        pass


class LoggedNotes(Silent):
    """Ignores progress, and writes each note once to the log, which is stderr unless a program configures it
    otherwise."""

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
