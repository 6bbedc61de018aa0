"""The read ceiling of a CPU: the measured bandwidth of its cores, which decode speeds are compared with."""

from __future__ import annotations

import ctypes
from pathlib import Path

from monolane.errors import TargetError, pip_install
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import processors, vector_level
from monolane.target.cpu.memory import allocate

BUFFER_BYTES = 512 << 20  # per thread: far more than any cache
ALL_BYTES = 8 << 30  # limit for all threads together; with more than 16 threads each buffer is smaller
DISTANCES = (0, 2048, 4096, 8192)  # bytes to prefetch ahead; 0 leaves prefetching to the processor


def compiled(name: str) -> ctypes.CDLL:
    """Compile a source of csrc/ and load it as a library."""
    compiler = find_compiler()
    if compiler is None:
        raise TargetError("Measuring the read ceiling needs a C++ compiler.", f"Install one: {pip_install('ziglang')}")
    folder = Path(__file__).parent / "csrc"
    return ctypes.CDLL(str(build((folder / name).read_text(), compiler, vector_level(), (folder,))))


class Buffers:
    """A buffer for each thread, and the processors that the threads are pinned to."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.size = min(BUFFER_BYTES, ALL_BYTES // threads) // 4096 * 4096
        self._memory = [allocate(self.size) for _ in range(threads)]
        for buffer in self._memory:
            buffer[:] = 1  # pages that were never written would all map to the same zero page
        self.addresses = (ctypes.c_void_p * threads)(*(buffer.ctypes.data for buffer in self._memory))
        self.processors = (ctypes.c_int32 * threads)(*processors()[:threads])
        self.sink = (ctypes.c_uint64 * threads)()


class ReadCeiling:
    """Buffers and a compiled reader; each call of ``measure`` is one fresh measurement."""

    def __init__(self, threads: int) -> None:
        self._call = compiled("read.cpp").monolane_read_seconds
        self._call.restype = ctypes.c_double
        self.buffers = Buffers(threads)

    def measure(self, threads: int | None = None) -> float:
        """Bytes per second at the best prefetch distance, by all threads or only the first ``threads``."""
        return max(self._once(distance, threads or self.buffers.threads) for distance in DISTANCES)

    def _once(self, distance: int, threads: int) -> float:
        have = self.buffers
        size = ctypes.c_int64(have.size)
        seconds = self._call(have.addresses, size, threads, have.processors, ctypes.c_int64(distance), have.sink)
        if any(total == 0 for total in have.sink[:threads]):
            raise TargetError("The reader did not read its buffers.")
        return float(threads * have.size / seconds)
