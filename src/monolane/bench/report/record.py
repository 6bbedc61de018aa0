"""Writes each result as one JSON file, with the machine, the versions and the command."""

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
from typing import TYPE_CHECKING, Any

from monolane import __version__
from monolane.cache import atomic_write
from monolane.target.cpu.compiler import find_compiler
from monolane.target.cpu.machine import processors, vector_level

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Device

RESULTS = Path("benchmarks/results")


def machine() -> dict[str, Any]:
    """The hardware and the system that the numbers were measured on."""
    compiler = find_compiler()
    return {
        "processor": processor_name(),
        "cores": len(processors()),
        "vectors": vector_level().name,
        "system": platform.platform(),
        "compiler": compiler.version.splitlines()[0] if compiler else None,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def gpu(device: Device) -> dict[str, Any]:
    """The GPU, with its driver and limits from nvidia-smi, which are None where there is no nvidia-smi."""
    fields = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu")
    return {
        "name": device.name,
        "multiprocessors": device.processors,
        "memory_bytes": device.memory,
        **dict(zip(fields, _nvidia_smi(fields) or (None,) * len(fields), strict=True)),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of Monolane, of Python, and of these packages."""
    found: dict[str, str | None] = {"monolane": __version__, "commit": _commit(), "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def write(name: str, result: dict[str, Any], folder: Path = RESULTS, keep: bool = False) -> Path:
    """Write a result to a file of this name; a result without a command gets that of this process. A file that git
    tracks was published: unless this one is to be kept in its place, it goes to a folder beside."""
    path = folder / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower())}.json"
    if not keep and is_tracked(path):
        path = path.parent.with_name(f"{path.parent.name}-new") / path.name
    with atomic_write(path) as file:
        file.write((json.dumps({"command": command()} | result, indent=2) + "\n").encode())
    return path


def written(name: str, result: dict[str, Any], folder: Path, keep: bool) -> str:
    """Write a result; the line for the user says where it is."""
    path = write(name, result, folder, keep)
    if path.parent == folder:
        return f"written: {path}"
    return f"written: {path}; {folder / path.name} is tracked by git and stays as it is (--keep replaces it)"


def is_tracked(path: Path) -> bool:
    """Whether git tracks this file."""
    if not path.is_file():
        return False
    words = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", path.name]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def command() -> str:
    """The command that repeats this measurement, without the output paths."""
    program, *words = sys.argv
    words = [word for word in words if word != "--keep"]
    for option in ("--out", "--picture"):
        if option in words:
            place = words.index(option)
            words = words[:place] + words[place + 2 :]
    if Path(program).stem == "monolane":
        return shlex.join(["monolane", *words])
    module = "monolane.bench.ceiling" if Path(program).parent.name == "ceiling" else "monolane.bench"
    return shlex.join(["python", "-m", module, *words])


def _nvidia_smi(fields: tuple[str, ...]) -> list[str] | None:
    """The values of these fields for GPU 0; None where nvidia-smi is missing or fails."""
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        shown = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    answers = [answer.strip() for answer in shown.stdout.strip().split(",")]
    return answers if shown.returncode == 0 and len(answers) == len(fields) else None


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_title(processor: object, cores: object) -> str:
    """The name under which the results of a CPU are kept."""
    return f"{processor}, {cores} cores"


def _commit() -> str | None:
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        shown = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return shown.stdout.strip() or None
