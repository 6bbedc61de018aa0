"""Runs a generated program in a process of its own, with limits, and says what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True)
class Limits:
    """``cpu_s`` ends a loop; ``wall_s`` ends a wait, and is longer because the machine may be busy."""

    cpu_s: int = 10
    wall_s: float = 60
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """``error`` is None where the program came to its end; otherwise the name of an exception, or "exit", "timeout",
    "signal NAME". ``isolated``: it ran without a network and with read-only files, in namespaces of its own."""

    error: str | None
    isolated: bool


def run(program: str, limits: Limits | None = None) -> Outcome:
    """Run a program: without input, without our environment variables, in an empty folder. Its output is dropped."""
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="monolane-quality-") as folder, tempfile.TemporaryFile() as report:
        words = [folder, report.fileno(), limits.memory_bytes, limits.cpu_s]
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(GUARD), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"OPENBLAS_NUM_THREADS": "1"},  # every thread would reserve address space, which is limited
            pass_fds=[report.fileno()],
            start_new_session=True,
        )
        timed_out = False
        try:
            process.communicate(program.encode(), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        report.seek(0)
        facts = {name: value for line in report for name, value in json.loads(line).items()}
    return Outcome("timeout" if timed_out else _error_of(facts), facts.get("isolated", False))


def _error_of(facts: dict[str, object]) -> str | None:
    code = facts.get("exit")
    if "error" in facts and code == 0:
        return None if facts["error"] is None else str(facts["error"])
    if not isinstance(code, int) or code >= 0:
        return "exit"
    name = signal.Signals(-code).name
    return "timeout" if name == "SIGXCPU" or code == -signal.SIGKILL else f"signal {name}"
