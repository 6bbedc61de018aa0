"""What a result says of the machine besides a speed: read ceiling, nominal bandwidth, energy, and hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monolane.bench.report import record

Ceiling = Callable[[], dict[str, float]]  # way to read -> bytes per second; each call is one fresh measurement
PACKAGES = {"cuda": ("numpy", "cuda-bindings", "nvidia-cuda-nvrtc"), "cpu": ("numpy",)}


@dataclass(frozen=True)
class Surroundings:
    """Measurements and facts about one device."""

    ceiling: Ceiling
    nominal_bytes_per_s: float | None  # None: unknown
    energy_j: Callable[[], float | None]  # a counter that only grows; None: unknown
    machine: dict[str, Any]
    packages: tuple[str, ...]  # whose versions every result has
    close: Callable[[], None]

    def where(self, *packages: str) -> dict[str, Any]:
        """The machine and the versions, which every result has."""
        return {"machine": self.machine, "versions": record.versions(*self.packages, *packages)}


def look_around(kind: str, workers: int | None) -> Surroundings:
    """Open the measurements for the device that a target of this kind runs on."""
    return _gpu() if kind == "cuda" else _cpu(workers)


def _cpu(workers: int | None) -> Surroundings:
    from monolane.bench.ceiling.read_cpu import ReadCeiling
    from monolane.target.cpu.machine import processors

    reader = ReadCeiling(min(workers or len(processors()), len(processors())))
    return Surroundings(
        ceiling=lambda: {"pinned threads": reader.measure()},
        nominal_bytes_per_s=None,
        energy_j=lambda: None,
        machine=record.machine(),
        packages=PACKAGES["cpu"],
        close=lambda: None,
    )


def _gpu() -> Surroundings:
    from monolane.bench.ceiling.read_gpu import GpuReadCeiling
    from monolane.bench.measure.nvml import gpu_meter
    from monolane.target.cuda.opening import required_gpu

    device, meter = required_gpu(), gpu_meter()
    reader = GpuReadCeiling(device)
    return Surroundings(
        ceiling=reader.measure,
        nominal_bytes_per_s=meter.nominal_bytes_per_s(),
        energy_j=meter.energy_j,
        machine=record.machine() | {"gpu": record.gpu(device)},
        packages=PACKAGES["cuda"],
        close=reader.close,
    )
