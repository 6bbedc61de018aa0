"""Whether this machine has an NVIDIA GPU, found out without the CUDA packages: from the driver's own library."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

DEVICE_FILE = Path("/dev/nvidiactl")  # of the kernel's part of the driver; containers without a GPU have none
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: none, or all of them hidden by CUDA_VISIBLE_DEVICES
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Presence:
    """The first GPU, as its driver describes it."""

    name: str
    capability: tuple[int, int]
    cuda: tuple[int, int]  # the newest version of CUDA that the driver knows


@dataclass(frozen=True)
class Unreachable:
    """There is a GPU, but its driver does not let us in."""

    reason: str


def look() -> Presence | Unreachable | None:
    """The GPU of this machine; None where there is none, or where the user has hidden it."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        if not DEVICE_FILE.exists():
            return None
        return Unreachable("the driver's library libcuda.so.1 is not found")
    if code := library.cuInit(0):
        # Where a library is left over without a driver under it, nobody expects a GPU.
        hidden = code == _NO_DEVICE or not DEVICE_FILE.exists()
        return None if hidden else Unreachable(f"its driver does not start: error {code} of cuInit")
    return _describe(library)


def _describe(library: ctypes.CDLL) -> Presence | None:
    count, device, version, part = (ctypes.c_int() for _ in range(4))
    if library.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    name = ctypes.create_string_buffer(100)
    library.cuDeviceGet(ctypes.byref(device), 0)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDriverGetVersion(ctypes.byref(version))
    capability = []
    for which in (_MAJOR, _MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(part), which, device)
        capability.append(part.value)
    major, minor = capability
    return Presence(name.value.decode(errors="replace"), (major, minor), divmod(version.value // 10, 100))
