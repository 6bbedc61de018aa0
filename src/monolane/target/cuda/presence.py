"""Finds out whether this machine has an NVIDIA GPU, from the driver's own library, without the CUDA packages."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

DEVICE_FILE = Path("/dev/nvidiactl")  # of the driver's kernel module; a container without a GPU does not have it
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: there is no GPU, or CUDA_VISIBLE_DEVICES hides all
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Presence:
    """The first GPU, as its driver describes it."""

    name: str
    capability: tuple[int, int]
    cuda: tuple[int, int]  # the newest version of CUDA that the driver supports


@dataclass(frozen=True)
class Unreachable:
    """There is a GPU, but its driver cannot be used."""

    reason: str


def look() -> Presence | Unreachable | None:
    """The first GPU of this machine; None where there is none, or where the user has hidden it."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        if not DEVICE_FILE.exists():
            return None
        return Unreachable("the driver's library libcuda.so.1 is not found")
    if code := library.cuInit(0):
        # A libcuda without a device file is left over from an earlier installation: there is no GPU to report.
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
