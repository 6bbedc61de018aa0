"""The most memory of this process, and of those that pack for it: pages of files that are mapped do not count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

_PROCESSES = Path("/proc")
_PACKS = b"pack_main"  # in the command of a process that packs
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
    """Memory that is in use now, and that no file holds: RssAnon of Linux, and while processes pack, also theirs and
    once what they share, RssShmem."""
    packing = _packing()
    own = _resident("self", "RssAnon:", *(["RssShmem:"] if packing else []))
    return None if own is None else own + sum(_resident(child, "RssAnon:") or 0 for child in packing)


def _resident(process: str, *kinds: str) -> int | None:
    try:
        lines = (_PROCESSES / process / "status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(kinds)]
    return 1024 * sum(found) if found else None


def _packing() -> list[str]:
    """Processes that this one has started to pack."""
    try:
        tasks = list((_PROCESSES / "self" / "task").glob("*/children"))
        children = [child for task in tasks for child in task.read_text().split()]
        return [child for child in children if _PACKS in (_PROCESSES / child / "cmdline").read_bytes()]
    except OSError:  # a thread or a process has ended meanwhile
        return []
