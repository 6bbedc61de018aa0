"""Memory of a GPU that the processes of several lanes use: made by one, and mapped by the others.

It is passed on as a file descriptor of the driver's virtual memory or, where there are none to be had, as the bytes of
an IPC handle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from monolane.errors import TargetError
from monolane.target.cuda.driver import Context, Device, call

_FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@dataclass(frozen=True)
class PeerMemory:
    """``size`` bytes at ``address`` in this process, and what another one maps them by: a descriptor, or a handle."""

    address: int
    size: int
    file: int | None = None
    handle: bytes = b""


def share(context: Context, size: int) -> PeerMemory:
    """Zeroed memory of the context's GPU, for this process and others."""
    context.enter()
    try:
        made = _share_by_file(context, size)
    except TargetError:
        made = _share_by_handle(context, size)
    context.clear(made.address, size)
    return made


def map_shared(context: Context, size: int, file: int | None, handle: bytes) -> int:
    """The address in this process of memory that another one shares."""
    context.enter()
    if file is None:
        received = driver.CUipcMemHandle()
        received.reserved = handle
        flag = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(call(driver.cuIpcOpenMemHandle(received, int(flag))))
    return _import(context, file, _whole(context.device, size))


def _share_by_file(context: Context, size: int) -> PeerMemory:
    whole = _whole(context.device, size)
    allocation = call(driver.cuMemCreate(whole, _properties(context.device), 0))
    try:
        file = int(call(driver.cuMemExportToShareableHandle(allocation, _FILE, 0)))
        # Mapped by the descriptor here, too: where that does not work, other processes could not do it, either.
        return PeerMemory(_import(context, file, whole), size, file)
    finally:
        call(driver.cuMemRelease(allocation))


def _share_by_handle(context: Context, size: int) -> PeerMemory:
    address = context.allocate(size)
    return PeerMemory(address, size, None, bytes(call(driver.cuIpcGetMemHandle(address)).reserved))


def _import(context: Context, file: int, whole: int) -> int:
    allocation = call(driver.cuMemImportFromShareableHandle(file, _FILE))
    address = context.map(allocation, whole)
    call(driver.cuMemRelease(allocation))  # the memory stays as long as it is mapped
    return address


def _whole(device: Device, size: int) -> int:
    """The size in whole units of the driver."""
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    unit = int(call(driver.cuMemGetAllocationGranularity(_properties(device), least)))
    return -(-size // unit) * unit


def _properties(device: Device) -> Any:
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = _FILE
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device.number
    return wanted
