"""The ceiling that was last measured on this machine, in the cache: other commands compare their speeds with it."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges, of_result
from monolane.bench.ceiling.result import idle_handoff_us
from monolane.bench.report.record import cpu_title, processor_name
from monolane.cache import atomic_write, cache_root
from monolane.target.cpu.machine import processors
from monolane.target.cuda.opening import find_gpu

MOST_BYTES = 1 << 20  # no more of a file is read


def stored(device: str) -> float | None:
    """The read ceiling of ``cpu`` or ``cuda`` in bytes per second; None where it has not been measured.

    ``auto`` is the GPU where there is one, else the CPU.
    """
    found = latest(device)
    return None if found is None else float(found["ceiling_bytes_per_s"])


def stored_handoff_us(device: str) -> float | None:
    """The time of a hand-off on this device while memory is idle; None where it has not been measured."""
    return idle_handoff_us(latest(device) or {})


def stored_exchanges(device: str) -> MeasuredExchanges | None:
    """The exchanges among lanes of this device; None where they have not been measured."""
    return of_result(latest(device) or {})


def latest(device: str) -> dict[str, Any] | None:
    """The whole result; None where there is no file, or the file is damaged or belongs to another machine."""
    machine = _machine(device)
    if machine is None:
        return None
    try:
        with _path(machine).open("rb") as file:
            found = json.loads(file.read(MOST_BYTES))
        fits = found["kept_for"] == machine and math.isfinite(found["ceiling_bytes_per_s"])
        return dict(found) if fits and found["ceiling_bytes_per_s"] > 0 else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def keep(result: dict[str, Any]) -> Path | None:
    """Keep a result in place of the previous one; returns its path, or None where this machine lacks its device."""
    machine = _machine(str(result["device"]).split()[0])
    if machine is None:
        return None
    with atomic_write(_path(machine)) as file:
        file.write(json.dumps({**result, "kept_for": machine}, indent=2).encode())
    return _path(machine)


def _path(machine: str) -> Path:
    return cache_root() / "ceilings" / f"{hashlib.sha256(machine.encode()).hexdigest()[:16]}.json"


def _machine(device: str) -> str | None:
    """What a ceiling is valid for: a GPU and its driver, or a processor and its cores; None where there is none."""
    if device in ("auto", "cuda"):
        gpu = find_gpu()
        if gpu is not None:
            return f"{gpu.name}, {gpu.processors} multiprocessors, driver {_driver_version()}"
    return None if device == "cuda" else cpu_title(processor_name(), len(processors()))


def _driver_version() -> int:
    from cuda.bindings import driver

    from monolane.target.cuda.driver import call

    return int(call(driver.cuDriverGetVersion()))
