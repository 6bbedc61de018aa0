"""The bench's CUDA kernels on threads of this CPU, and the driver's calls that start them."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import vector_level
from monolane.target.cuda import jit

_ENTRY = """
extern "C" void run_emulated(const monolane::Launch* launch, int blocks, int threads, int shared_bytes) {
  monolane_launch = *launch;
  monolane::emulate::delay_permille = 10;
  monolane::emulate::launch(monolane_kernel, 0, blocks, threads, shared_bytes);
}
"""


class EmulatedKernel:
    """A kernel whose source includes emulate.hpp."""

    def __init__(self, source: str) -> None:
        compiler = find_compiler()
        assert compiler is not None
        flags = ("-Wno-unknown-pragmas", "-O0")
        self._library = ctypes.CDLL(str(build(source + _ENTRY, compiler, vector_level(), jit.HEADERS, flags)))

    def run(self, given: ctypes.Structure, blocks: int, threads: int, shared_bytes: int) -> None:
        """Until it has ended; a deadlock ends the process with a message."""
        self._library.run_emulated(ctypes.byref(given), blocks, threads, shared_bytes + 128)


def aligned_words(count: int) -> NDArray[np.uint32]:
    """Random 32-bit words at an address that is a multiple of 16 bytes."""
    memory = np.random.default_rng(0).integers(0, 1 << 32, count + 4, np.uint32)
    return memory[(-memory.ctypes.data // 4) % 4 :][:count]


def compile_emulated(source: str, _architecture: str) -> SimpleNamespace:
    """The twin of ``jit.compile_kernel``: what it makes is the source for threads."""
    return SimpleNamespace(cubin=source.replace("ptx.cuh", "emulate.hpp"))


class EmulatedContext:
    """The twin of ``driver.Context``. A launch runs in a thread of its own, as a GPU runs beside the host."""

    def __init__(self, _device: object) -> None:
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._thread: threading.Thread | None = None

    def enter(self) -> None: ...

    def free_memory(self) -> int:
        return 64 << 20

    def allocate(self, size: int) -> int:
        buffer = np.zeros(size + 512, np.uint8)
        address = int(-(-buffer.ctypes.data // 256) * 256)
        self._memory[address] = buffer
        return address

    host_memory = allocate

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, address: int, into: NDArray[np.generic]) -> None:
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def clear(self, address: int, size: int) -> None:
        ctypes.memset(address, 0, size)

    def load(self, cubin: str, _shared_bytes: int) -> EmulatedKernel:
        return EmulatedKernel(cubin)

    def launch(
        self, kernel: EmulatedKernel, blocks: int, threads: int, shared_bytes: int, given: ctypes.Structure
    ) -> None:
        assert not self.running()
        how = (type(given).from_buffer_copy(given), blocks, threads, shared_bytes)
        self._thread = threading.Thread(target=kernel.run, args=how)
        self._thread.start()

    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        self._memory.clear()
