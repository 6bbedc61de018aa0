"""NVML: values are read from it, and it may be missing."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from monolane.bench.measure import nvml

H200_MHZ, H200_BITS = 3201, 6144


class Library:
    """Answers as the real one does: through pointers, 0 for success."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit_v2": 0,
            "nvmlDeviceGetHandleByPciBusId_v2": 42,
            "nvmlDeviceGetTotalEnergyConsumption": 7_500,
            "nvmlDeviceGetMaxClockInfo": H200_MHZ,
            "nvmlDeviceGetMemoryBusWidth": H200_BITS,
        }

        def call(*arguments: Any) -> int:
            self.asked.append(name)
            if arguments:
                arguments[-1]._obj.value = answers[name]
            return 0

        return call


def test_energy_and_nominal_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    meter = nvml.Meter("0000:1B:00.0")
    assert meter.energy_j() == 7.5
    assert meter.nominal_bytes_per_s() == pytest.approx(4.917e12, rel=1e-3)
    assert not [call for call in library.asked if "Set" in call]


def test_without_the_library_nobody_knows() -> None:
    meter = nvml.Meter("0000:1B:00.0", library="libno-such-library.so.1")
    assert meter.energy_j() is None
    assert meter.nominal_bytes_per_s() is None


def test_a_card_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        nvmlInit_v2 = nvmlDeviceGetHandleByPciBusId_v2 = staticmethod(lambda *_: 0)  # noqa: N815
        nvmlDeviceGetTotalEnergyConsumption = staticmethod(lambda *_: 3)  # noqa: N815  # not supported

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Silent())
    meter = nvml.Meter("0000:1B:00.0")
    assert meter.energy_j() is None
    assert meter.nominal_bytes_per_s() is None
