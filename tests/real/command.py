"""The command line in a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-c", "from monolane.cli import main; main()")


def environment(**variables: str) -> dict[str, str]:
    """Ours, with the modules that this process can import."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | variables


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def monolane(*words: str | Path, within: tuple[str, ...] = (), folder: Path | None = None, **variables: str) -> Outcome:
    """Run a command to its end in ``folder``; ``within`` is a program that runs it in its turn."""
    done = subprocess.run(
        [*within, *COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env=environment(**variables),
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
