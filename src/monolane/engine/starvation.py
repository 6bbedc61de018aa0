"""Tells a process that hangs from one that is only slow to show that it lives.

On a busy machine, or while a library holds the GIL, a healthy process may not beat for seconds. Linux
says what its threads do: one that runs, or waits for a processor or for the disk, will get further; where all of them
sleep or are stopped, nobody will beat any more. One case is left: the host of a virtual machine takes one of its
processors away, and with it the timer that would wake the thread that beats. That thread seems to sleep, while others
run on. So whoever suspects a process visits all processors first.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

CAN_TELL = sys.platform == "linux"
# Processor time after which even a process that runs is taken for one that hangs, in a loop without end. It is long,
# because a virtual machine counts time that its host took away as processor time of whoever was running.
ENOUGH_S = 5.0
_WILL_RUN = (["R"], ["D"])  # states in /proc: running or ready to run; waiting for the disk


class Starvation:
    """What a process has done since its last heartbeat."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.restart()

    def restart(self) -> None:
        """The process has beaten."""
        self._used_s = self._processor_s()

    def is_likely(self) -> bool:
        """Whether the process may yet beat once it gets the time; False where this cannot be found out."""
        if self._processor_s() - self._used_s > ENOUGH_S:
            return False
        return any(_fields(task / "stat")[:1] in _WILL_RUN for task in _entries(self._folder / "task"))

    def _processor_s(self) -> float:
        fields = _fields(self._folder / "stat")
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # in user mode and in the kernel


def visit_processors(pid: int) -> None:
    """Run for a moment on every processor that the process may use: afterwards none of them is away."""
    if not CAN_TELL:
        return
    own = os.sched_getaffinity(0)
    with suppress(OSError):  # the process has died, or may run where this one may not
        for processor in os.sched_getaffinity(pid):
            os.sched_setaffinity(0, {processor})  # of the calling thread; it returns when the thread runs there
    os.sched_setaffinity(0, own)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # the process has died, or this is not Linux
        return []


def _fields(file: Path) -> list[str]:
    """What a stat file of /proc says after the name, which is in parentheses and may contain anything."""
    try:
        return file.read_text().rpartition(")")[2].split()
    except OSError:
        return []
