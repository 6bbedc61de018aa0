"""Runs the CUDA kernels of bench/ceiling in the emulation, and stands in for the driver calls that launch them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from emulated_context import EmulatedMemory
from monolane.target import emulation
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import vector_level

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
        self._library = ctypes.CDLL(str(build(source + _ENTRY, compiler, vector_level(), emulation.HEADERS, flags)))

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


class EmulatedContext(EmulatedMemory):
    """For the kernels of the bench, which come as source."""

    def __init__(self, device: object) -> None:
        super().__init__()
        self.device = device

    def load(self, cubin: str, _shared_bytes: int) -> EmulatedKernel:
        return EmulatedKernel(cubin)

    def launch(
        self, kernel: EmulatedKernel, blocks: int, threads: int, shared_bytes: int, given: ctypes.Structure
    ) -> None:
        mine = type(given).from_buffer_copy(given)
        self.start(lambda: kernel.run(mine, blocks, threads, shared_bytes))
