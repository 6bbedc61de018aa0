"""The most memory of this process that is its own: pages of files that it has mapped do not count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

_STATUS = Path("/proc/self/status")
_EVERY_S = 0.02


class AnonymousPeak:
    """While the ``with`` block runs, a thread looks every 20 ms. ``bytes`` is None where the system does not say."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="anonymous memory", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while (now := anonymous_bytes()) is not None:
            self.bytes = max(self.bytes or 0, now)
            if self._done.wait(_EVERY_S):
                return


def anonymous_bytes() -> int | None:
    """RssAnon of Linux: memory that is in use now, and that no file holds."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return 1024 * int(found[0]) if found else None
