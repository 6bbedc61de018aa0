"""The interface through which long work (downloads, loading) reports its progress."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol


class Progress(Protocol):
    """Shows one progress bar after another: ``start``, any number of ``advance``, ``done``. ``note`` may be called at
    any time."""

    def start(self, total_bytes: int, label: str) -> None:
        """Begin a new bar."""

    def advance(self, bytes_done: int) -> None:
        """Advance the bar by this many bytes; the number is negative where work was lost and is repeated."""

    def note(self, text: str) -> None:
        """Show one line that the user should read."""

    def done(self) -> None:
        """End the bar, whether the work succeeded or not."""


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
    """A progress bar for the ``with`` block; it ends even if the block fails."""
    progress.start(total_bytes, label)
    try:
        yield
    finally:
        progress.done()
