"""The progress of loading, kept so that it can be asked for at any time."""

from __future__ import annotations

from monolane.engine import messages
from monolane.progress import Progress, Silent


class LoadProgress:
    """A Progress that keeps its latest state and passes every call on to another one."""

    def __init__(self, shown: Progress | None) -> None:
        self._shown = shown or Silent()
        self._noted: set[str] = set()
        self.label: str | None = None  # of the current step
        self.done_bytes = 0
        self.total_bytes = 0

    def start(self, total_bytes: int, label: str) -> None:
        self.label, self.done_bytes, self.total_bytes = label, 0, total_bytes
        self._shown.start(total_bytes, label)

    def advance(self, bytes_done: int) -> None:
        self.done_bytes += bytes_done
        self._shown.advance(bytes_done)

    def note(self, text: str) -> None:
        if text not in self._noted:  # an engine process that restarts sends the same notes again
            self._noted.add(text)
            self._shown.note(text)

    def done(self) -> None:
        if self.label is not None:
            self.label, self.done_bytes, self.total_bytes = None, 0, 0
            self._shown.done()

    @property
    def shown_share(self) -> str:
        """How far it has come, for the end of a sentence, such as " (Packing weights: 42%)"."""
        if self.label is None:
            return ""
        return f" ({self.label}: {100 * self.done_bytes // max(1, self.total_bytes)}%)"

    def update(self, loading: messages.Loading) -> None:
        """Take over what the engine process reports of its own loading."""
        if loading.label != self.label:
            self.done()
            self.start(loading.total_bytes, loading.label)
        self.advance(loading.done_bytes - self.done_bytes)
