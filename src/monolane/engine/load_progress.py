"""How far the loading has come, for whoever asks, wherever the work is done."""

from __future__ import annotations

from monolane.engine import messages
from monolane.progress import Progress, Silent


class LoadProgress:
    """A Progress that remembers, and passes everything on to another one."""

    def __init__(self, audience: Progress | None) -> None:
        self._audience = audience or Silent()
        self._noted: set[str] = set()
        self.label: str | None = None  # of the work under way
        self.done_bytes = 0
        self.total_bytes = 0

    def start(self, total_bytes: int, label: str) -> None:
        self.label, self.done_bytes, self.total_bytes = label, 0, total_bytes
        self._audience.start(total_bytes, label)

    def advance(self, bytes_done: int) -> None:
        self.done_bytes += bytes_done
        self._audience.advance(bytes_done)

    def note(self, text: str) -> None:
        if text not in self._noted:  # an engine that restarts has the same to say again
            self._noted.add(text)
            self._audience.note(text)

    def done(self) -> None:
        if self.label is not None:
            self.label, self.done_bytes, self.total_bytes = None, 0, 0
            self._audience.done()

    def hear(self, loading: messages.Loading) -> None:
        """The engine's process tells of its own loading."""
        if loading.label != self.label:
            self.done()
            self.start(loading.total_bytes, loading.label)
        self.advance(loading.done_bytes - self.done_bytes)
