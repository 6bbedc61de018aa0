"""Processors for the replicas of one machine: workers are pinned, so no two replicas may have the same ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

_HELD: list[FileLock] = []  # until this process ends; then the system gives them back


def take_processors(count: int) -> None:
    """Let this thread, and the processes it starts, run on ``count`` processors that no other replica on this machine
    has taken. Where fewer are free, it may run on all."""
    if not hasattr(os, "sched_setaffinity"):
        return  # threads are not pinned there either
    folder = Path(tempfile.gettempdir()) / f"monolane-processors-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    taken: list[int] = []
    for cpu in sorted(os.sched_getaffinity(0), key=_core):
        if len(taken) == count:
            break
        lock = FileLock(folder / str(cpu))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        _HELD.append(lock)
        taken.append(cpu)
    if len(taken) == count:
        os.sched_setaffinity(0, taken)


def _core(cpu: int) -> tuple[str, int]:
    """Sorts the processors of one core together: two replicas should not share a core."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    first = siblings.read_text().strip() if siblings.exists() else str(cpu)
    return first, cpu
