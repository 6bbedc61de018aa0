"""The calls of the CUDA driver that Monolane needs, with their errors as its own. Imported only where a GPU is used."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from monolane.errors import ResourceError, TargetError
from monolane.target.cuda.cards import ARCHITECTURES


def call(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises an error with the driver's name and text for it."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(code)
        _, text = driver.cuGetErrorString(code)
        message = f"CUDA: {name.decode()}: {text.decode()}."
        if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise ResourceError(message, "Use a smaller model or context, or free the GPU's memory.")
        raise TargetError(message, "Load the model again; if it happens again, use device='cpu' and report it.")
    return values[0] if len(values) == 1 else tuple(values) or None


@dataclass(frozen=True)
class Device:
    """A GPU and its properties."""

    handle: Any
    name: str
    processors: int  # streaming multiprocessors
    shared_limit: int  # bytes of shared memory that a thread block may have
    memory: int
    capability: tuple[int, int]
    number: int = 0

    @property
    def architecture(self) -> str:
        """The architecture that kernels are compiled for, such as ``sm_90a``."""
        return ARCHITECTURES[self.capability]


def find_devices() -> list[Device]:
    """All GPUs; none where there is no driver."""
    try:
        call(driver.cuInit(0))
        count = int(call(driver.cuDeviceGetCount()))
    except (TargetError, RuntimeError):  # no driver library, no device
        return []
    return [_device(number) for number in range(count)]


def _device(number: int) -> Device:
    handle = call(driver.cuDeviceGet(number))
    attribute = driver.CUdevice_attribute

    def ask(which: Any) -> int:
        return int(call(driver.cuDeviceGetAttribute(which, handle)))

    return Device(
        handle=handle,
        name=call(driver.cuDeviceGetName(100, handle)).split(b"\0")[0].decode(),
        processors=ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        shared_limit=ask(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        memory=int(call(driver.cuDeviceTotalMem(handle))),
        capability=(
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        number=number,
    )


def has_mps(device: Device) -> bool:
    """Whether this process shares the GPU with others through MPS, so that their kernels run at the same time."""
    which = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
    return bool(call(driver.cuDeviceGetAttribute(which, device.handle)))


def reaches(device: Device, other: Device) -> bool:
    """Whether the threads of a GPU can use the memory of another one."""
    return bool(call(driver.cuDeviceCanAccessPeer(device.handle, other.handle)))


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel, and the address and size of its Launch struct in constant memory."""

    function: Any
    place: int
    size: int


class Context:
    """The device's primary context, one stream, and the memory allocated through it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._context = call(driver.cuDevicePrimaryCtxRetain(device.handle))
        self.enter()
        self._stream = call(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._ended = call(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))  # of the last launch
        self._memory: list[int] = []
        self._host: list[int] = []
        self._mapped: list[tuple[int, int]] = []

    def enter(self) -> None:
        """Make the context current in this thread."""
        call(driver.cuCtxSetCurrent(self._context))

    def free_memory(self) -> int:
        return int(call(driver.cuMemGetInfo())[0])

    def allocate(self, size: int) -> int:
        """Memory of undefined content."""
        address = int(call(driver.cuMemAlloc(max(size, 16))))
        self._memory.append(address)
        return address

    def map(self, allocation: Any, size: int) -> int:
        """Map an allocation of the driver's virtual memory, of this process or of another one, for this GPU."""
        address = call(driver.cuMemAddressReserve(size, 0, 0, 0))
        call(driver.cuMemMap(address, size, 0, allocation, 0))
        self._mapped.append((int(address), size))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.device.number
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(driver.cuMemSetAccess(address, size, [access], 1))
        return int(address)

    def upload(self, data: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(data)
        address = self.allocate(data.nbytes)
        if data.nbytes:
            self.write(address, data)
        return address

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        """Copy a contiguous array to the device, from any thread, and wait for the copy."""
        self.enter()
        # On the kernel's stream: a copy on another stream might not have ended when the kernel starts.
        call(driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))
        call(driver.cuStreamSynchronize(self._stream))

    def send(self, address: int, data: NDArray[np.generic]) -> None:
        """Copy without waiting, before what follows on the stream. ``data`` must stay until the copy has ended."""
        call(driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._stream))

    def download(self, address: int, into: NDArray[np.generic]) -> None:
        call(driver.cuMemcpyDtoH(into.ctypes.data, address, into.nbytes))

    def copy_rows(self, source: int, target: int, pitch: int, width: int, rows: int) -> None:
        """Copy the first ``width`` bytes of every row of ``pitch`` bytes, within the device."""
        how = driver.CUDA_MEMCPY2D()
        how.srcMemoryType = how.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        how.srcDevice, how.dstDevice = driver.CUdeviceptr(source), driver.CUdeviceptr(target)
        how.srcPitch = how.dstPitch = pitch
        how.WidthInBytes, how.Height = width, rows
        call(driver.cuMemcpy2DAsync(how, self._stream))
        call(driver.cuStreamSynchronize(self._stream))

    def clear(self, address: int, size: int, byte: int = 0) -> None:
        """Set every byte, before what follows on the stream."""
        call(driver.cuMemsetD8Async(address, byte, size, self._stream))

    def free(self, address: int) -> None:
        self._memory.remove(address)
        call(driver.cuMemFree(address))

    def host_memory(self, size: int) -> int:
        """Pinned, zeroed memory of the host, which the device accesses at the same address."""
        address = int(call(driver.cuMemHostAlloc(size, driver.CU_MEMHOSTALLOC_DEVICEMAP)))
        ctypes.memset(address, 0, size)
        self._host.append(address)
        return address

    def load(self, cubin: bytes, shared_bytes: int) -> Kernel:
        """Load the kernel of a cubin; it may use ``shared_bytes`` of dynamic shared memory."""
        module = call(driver.cuModuleLoadData(cubin))
        function = call(driver.cuModuleGetFunction(module, b"monolane_kernel"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute(function, limit, shared_bytes))
        place, size = call(driver.cuModuleGetGlobal(module, b"monolane_launch"))
        return Kernel(function, int(place), int(size))

    def launch(
        self,
        kernel: Kernel,
        blocks: int,
        threads: int,
        shared_bytes: int,
        given: ctypes.Structure,
        cooperative: bool = True,
    ) -> None:
        """Launch the kernel. ``cooperative``: all thread blocks are resident at once, because they wait for each other.
        ``given`` is the Launch struct, which is copied to constant memory first."""
        if ctypes.sizeof(given) != kernel.size:
            raise TargetError(f"The kernel expects {kernel.size} bytes to start, not {ctypes.sizeof(given)}.")
        call(driver.cuMemcpyHtoDAsync(kernel.place, ctypes.addressof(given), kernel.size, self._stream))
        unused = ctypes.c_int(0)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(unused))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, self._stream
        resident = driver.CUlaunchAttribute()
        resident.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        resident.value.cooperative = int(cooperative)
        config.attrs, config.numAttrs = [resident], 1
        call(driver.cuLaunchKernelEx(config, kernel.function, ctypes.addressof(pointers), 0))
        call(driver.cuEventRecord(self._ended, self._stream))

    def running(self) -> bool:
        """Whether the kernel still runs, whatever else is on the stream. Raises an error if it has failed."""
        (code,) = driver.cuEventQuery(self._ended)
        if code == driver.CUresult.CUDA_ERROR_NOT_READY:
            return True
        call((code,))
        return False

    def close(self) -> None:
        self.enter()
        for address in self._memory:
            driver.cuMemFree(address)
        for address, size in self._mapped:
            driver.cuMemUnmap(address, size)
            driver.cuMemAddressFree(address, size)
        for address in self._host:
            driver.cuMemFreeHost(address)
        self._memory, self._host, self._mapped = [], [], []
        driver.cuEventDestroy(self._ended)
        driver.cuDevicePrimaryCtxRelease(self.device.handle)
