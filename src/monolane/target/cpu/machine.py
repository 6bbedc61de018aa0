"""The processors, vector instructions and memory of this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class VectorLevel:
    """The widest vector instructions the processor has, and the compiler flags that allow them."""

    name: str
    flags: tuple[str, ...]


_AVX2 = ("avx2", "fma", "bmi2", "f16c")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_VNNI = ("avx512vnni",)  # products of 8-bit integers
_DOTPROD = ("-march=armv8.2-a+dotprod",)  # the same on ARM


@cache
def vector_level() -> VectorLevel:
    """The vector instructions of the machine that this runs on."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        have = _processor_flags()
        if have.issuperset((*_AVX2, *_AVX512, "avx512_vnni")):
            return VectorLevel("avx512vnni", tuple(f"-m{flag}" for flag in _AVX2 + _AVX512 + _VNNI))
        if have.issuperset(_AVX2 + _AVX512):
            return VectorLevel("avx512", tuple(f"-m{flag}" for flag in _AVX2 + _AVX512))
        if have.issuperset(_AVX2):
            return VectorLevel("avx2", tuple(f"-m{flag}" for flag in _AVX2))
        return VectorLevel("sse2", ())
    if machine in ("arm64", "aarch64"):
        # Every ARM processor of a Mac has them.
        if platform.system() == "Darwin" or "asimddp" in _processor_flags():
            return VectorLevel("dotprod", _DOTPROD)
        return VectorLevel("neon", ())
    return VectorLevel("portable", ())


def _processor_flags() -> set[str]:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):  # x86, ARM
                return set(line.split(":", 1)[1].split())
    if platform.system() == "Darwin":
        import subprocess

        asked = ["sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return set(shown.lower().replace("avx1.0", "avx").split())
    return set()


@cache
def processors() -> tuple[int, ...]:
    """One logical processor of every core that this process may use: a second thread on a core adds no bandwidth."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    found: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text().strip() if siblings.exists() else str(cpu)
        if core not in seen:
            seen.add(core)
            found.append(cpu)
    return tuple(found[: _group_processors() or None])


def _group_processors() -> int:
    """The number of whole processors that the control group allows (``docker --cpus``); 0 where there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return 0 if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 0


def available_memory() -> int | None:
    """Bytes that are available without swapping, within the control group; None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min([int(line.split()[1]) * 1024, *_group_memory()])
    except OSError:
        pass
    return None


def _group_memory() -> list[int]:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit == "max":
            return []
        stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return [max(0, int(limit) - used + int(stat.get("inactive_file", 0)))]  # cached files can be evicted
    except (OSError, ValueError):
        return []
