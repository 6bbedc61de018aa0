"""The read ceiling of a GPU: the bandwidth its multiprocessors really get, which every decode speed is held against."""

from __future__ import annotations

import time
from ctypes import Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolane.errors import ResourceError, TargetError
from monolane.model.cache import human_size
from monolane.target.cuda.jit import compile_kernel

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Context, Device, Kernel

SHARE_BYTES = 32 << 20  # per multiprocessor: 4.4 GB on an H200, far more than its L2 cache
PASSES = 4  # over all of it in one launch: about 4 ms, beside which starting and ending do not count
CHUNK_BYTES = 16384


@dataclass(frozen=True)
class Way:
    """A way to read: ``unroll`` 16-byte loads per thread at a time, or a ring of ``slots`` bulk copies of 16 KiB."""

    threads: int
    unroll: int = 0
    slots: int = 0

    @property
    def name(self) -> str:
        if self.slots:
            return f"ring of {self.slots} bulk copies of 16 KiB"
        return f"{self.unroll} loads of 16 bytes by each of {self.threads} threads"

    @property
    def shared_bytes(self) -> int:
        return self.slots * (CHUNK_BYTES + 2 * 8)  # a chunk and two barriers


WAYS = (Way(1024, unroll=4), Way(1024, unroll=8), Way(288, slots=4), Way(288, slots=8), Way(288, slots=12))


class Launch(Structure):
    """The host's twin of the struct in csrc/read.cu."""

    _fields_ = [
        ("memory", c_void_p),
        ("bytes", c_int64),
        ("times", c_void_p),
        ("sum", c_void_p),
        ("blocks", c_int32),
        ("passes", c_int32),
    ]


def source(way: Way, header: str = "ptx.cuh") -> str:
    """The kernel that reads in one way."""
    constants = f"constexpr int kThreads = {way.threads}, kUnroll = {way.unroll}, kSlots = {way.slots};"
    return f'#include "{header}"\n{constants}\n' + (Path(__file__).parent / "csrc" / "read.cu").read_text()


class GpuReadCeiling:
    """Random memory and a compiled reader for each way; each call of ``measure`` is one fresh measurement."""

    def __init__(self, device: Device) -> None:
        from monolane.target.cuda.driver import Context

        compiled = {way: compile_kernel(source(way), "sm_90a") for way in WAYS}
        self._blocks = device.processors
        self._bytes = self._blocks * SHARE_BYTES
        self._context = Context(device)
        _require_memory(self._context, self._bytes)
        self._kernels = {way: self._context.load(code.cubin, way.shared_bytes) for way, code in compiled.items()}
        self._memory = self._context.allocate(self._bytes)
        self._times = self._context.allocate(2 * 8 * self._blocks)
        self._sum = self._context.allocate(8)
        # Random, the same for all: memory full of zeros would cost less power than weights do.
        share = np.random.default_rng(0).integers(0, 1 << 32, SHARE_BYTES // 4, np.uint32)
        for block in range(self._blocks):
            self._context.write(self._memory + block * SHARE_BYTES, share)
        self._expected = PASSES * self._blocks * int(share.sum(dtype=np.uint64)) % 2**64

    def measure(self) -> dict[str, float]:
        """Bytes per second in each way; the ceiling is the best of them."""
        self._context.enter()
        return {way.name: self._once(way, kernel) for way, kernel in self._kernels.items()}

    def close(self) -> None:
        self._context.close()

    def _once(self, way: Way, kernel: Kernel) -> float:
        self._context.clear(self._sum, 8)
        given = Launch(self._memory, self._bytes, self._times, self._sum, self._blocks, PASSES)
        self._context.launch(kernel, self._blocks, way.threads, way.shared_bytes, given)
        while self._context.running():
            time.sleep(1e-4)
        times, total = np.zeros((self._blocks, 2), np.int64), np.zeros(1, np.uint64)
        self._context.download(self._times, times)
        self._context.download(self._sum, total)
        if int(total[0]) != self._expected:
            raise TargetError(f"The reader ({way.name}) did not read all of its memory.")
        return float(PASSES * self._bytes / ((times[:, 1].max() - times[:, 0].min()) * 1e-9))


def _require_memory(context: Context, size: int) -> None:
    if size > context.free_memory():
        raise ResourceError(
            f"Measuring the read ceiling needs {human_size(size)} of GPU memory, "
            f"but only {human_size(context.free_memory())} are free.",
            "End other programs that use the GPU.",
        )
