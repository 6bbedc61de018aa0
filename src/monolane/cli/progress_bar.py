"""Progress of downloads and loading on stderr: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from monolane import progress as model_progress
from monolane.cache import human_size

LINES_PER_BAR = 4  # of a plain progress, besides the one at its start


def progress_bar() -> model_progress.Progress:
    """A bar where stderr is a terminal, plain lines where it is not."""
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()


class TerminalProgress:
    """A bar that moves."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def start(self, total_bytes: int, label: str) -> None:
        self.done()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(label, total=total_bytes)
        self._bar.start()

    def advance(self, bytes_done: int) -> None:
        if self._bar:
            self._bar.advance(self._task, bytes_done)

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)

    def done(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


class PlainProgress:
    """A line at the start and at every quarter, for logs and pipes."""

    def __init__(self) -> None:
        self._label = ""
        self._total = 0
        self._done = 0
        self._told = 0

    def start(self, total_bytes: int, label: str) -> None:
        self._label, self._total, self._done, self._told = label, total_bytes, 0, 0
        self.note(f"{label} ({human_size(total_bytes)})")

    def advance(self, bytes_done: int) -> None:
        self._done += bytes_done
        step = self._done * LINES_PER_BAR // max(self._total, 1)
        if step > self._told:
            self._told = step
            self.note(f"{self._label}: {100 * self._done // max(self._total, 1)}%")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        self._label = ""
