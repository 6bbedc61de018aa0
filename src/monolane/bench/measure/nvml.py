"""Reads a GPU's nominal memory bandwidth and energy counter through NVML; sets nothing."""

from __future__ import annotations

import ctypes

SUCCESS = 0
CLOCK_MEM = 2  # NVML_CLOCK_MEM
TRANSFERS_PER_CLOCK = 2  # double data rate


class Meter:
    """One GPU, found by its PCI address. Methods return None where library, driver or GPU do not provide the value."""

    def __init__(self, pci_bus_id: str, library: str = "libnvidia-ml.so.1") -> None:
        self._handle = ctypes.c_void_p()
        self._library: ctypes.CDLL | None = None
        try:
            loaded = ctypes.CDLL(library)
            place = pci_bus_id.encode()
            if loaded.nvmlInit_v2() == SUCCESS:
                found = loaded.nvmlDeviceGetHandleByPciBusId_v2(place, ctypes.byref(self._handle))
                self._library = loaded if found == SUCCESS else None
        except (OSError, AttributeError):  # not installed, or not that library
            pass

    def energy_j(self) -> float | None:
        """Joules used since the driver was loaded. The GPU updates the counter some ten times a second."""
        used = ctypes.c_ulonglong()
        return used.value / 1e3 if self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(used)) else None

    def nominal_bytes_per_s(self) -> float | None:
        """Highest memory clock times transfers per clock times the width of the bus."""
        megahertz, bits = ctypes.c_uint(), ctypes.c_uint()
        if not self._ask("nvmlDeviceGetMaxClockInfo", CLOCK_MEM, ctypes.byref(megahertz)):
            return None
        if not self._ask("nvmlDeviceGetMemoryBusWidth", ctypes.byref(bits)):
            return None
        return megahertz.value * 1e6 * TRANSFERS_PER_CLOCK * bits.value / 8 or None

    def _ask(self, name: str, *arguments: object) -> bool:
        """Call a function of the library for this GPU; False where it is missing or fails."""
        function = getattr(self._library, name, None)
        return function is not None and function(self._handle, *arguments) == SUCCESS


def gpu_meter() -> Meter:
    """The meter of CUDA device 0."""
    from cuda.bindings import driver

    from monolane.target.cuda.driver import call
    from monolane.target.cuda.opening import required_gpu

    place = call(driver.cuDeviceGetPCIBusId(32, required_gpu().handle))
    return Meter(place.split(b"\0")[0].decode())
