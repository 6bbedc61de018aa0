"""One result, one JSON file: what was measured, on which machine, with which versions, by which command."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from monolane import __version__
from monolane.model.cache import atomic_write
from monolane.target.cpu.compiler import find_compiler
from monolane.target.cpu.machine import processors, vector_level

RESULTS = Path("benchmarks/results")


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    compiler = find_compiler()
    return {
        "processor": _processor_name(),
        "cores": len(processors()),
        "vectors": vector_level().name,
        "system": platform.platform(),
        "compiler": compiler.version.splitlines()[0] if compiler else None,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Ours, Python's, and those of the packages that took part."""
    found: dict[str, str | None] = {"monolane": __version__, "commit": _commit(), "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def write(name: str, result: dict[str, Any]) -> Path:
    """Keep a result under a name made of its benchmark and model."""
    path = RESULTS / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower())}.json"
    command = shlex.join(["python", "-m", "monolane.bench", *sys.argv[1:]])
    with atomic_write(path) as file:
        file.write((json.dumps({**result, "command": command}, indent=2) + "\n").encode())
    return path


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        shown = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return shown.stdout.strip() or None
