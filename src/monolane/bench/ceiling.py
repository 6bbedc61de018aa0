"""The read ceiling of a CPU: the bandwidth its cores really get, which every decode speed is held against."""

from __future__ import annotations

import ctypes
from pathlib import Path

from monolane.errors import TargetError
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import processors, vector_level
from monolane.target.cpu.memory import allocate

BUFFER_BYTES = 512 << 20  # per thread: far more than any cache
DISTANCES = (0, 2048, 4096, 8192)  # bytes asked for ahead; 0 leaves it to the processor


class ReadCeiling:
    """Buffers and a compiled reader; each call of ``measure`` is one fresh measurement."""

    def __init__(self, threads: int) -> None:
        compiler = find_compiler()
        if compiler is None:
            raise TargetError("Measuring the read ceiling needs a C++ compiler.", "Install one: pip install ziglang")
        source = (Path(__file__).parent / "csrc" / "read.cpp").read_text()
        self._call = ctypes.CDLL(str(build(source, compiler, vector_level()))).monolane_read_seconds
        self._call.restype = ctypes.c_double
        self._threads = threads
        self._buffers = [allocate(BUFFER_BYTES) for _ in range(threads)]
        for buffer in self._buffers:
            buffer[:] = 1  # untouched pages would all be the same zero page
        self._addresses = (ctypes.c_void_p * threads)(*(buffer.ctypes.data for buffer in self._buffers))
        self._processors = (ctypes.c_int32 * threads)(*processors()[:threads])
        self._sink = (ctypes.c_uint64 * threads)()

    def measure(self) -> float:
        """Bytes per second: the best of the ways to read."""
        return max(self._once(distance) for distance in DISTANCES)

    def _once(self, distance: int) -> float:
        size = ctypes.c_int64(BUFFER_BYTES)
        seconds = self._call(
            self._addresses, size, self._threads, self._processors, ctypes.c_int64(distance), self._sink
        )
        if any(total == 0 for total in self._sink):
            raise TargetError("The reader did not read its buffers.")
        return float(self._threads * BUFFER_BYTES / seconds)
