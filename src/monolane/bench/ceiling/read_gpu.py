"""The read ceiling of a GPU: the measured bandwidth of its SMs, which decode speeds are compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolane.cache import human_size
from monolane.errors import ResourceError, TargetError
from monolane.target import cpp
from monolane.target.cuda.jit import compile_kernel

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Context, Device, Kernel

# Per SM: 4.4 GB in all on an H200, far more than its L2 cache. It is not a power of two, so that the addresses at which
# the SMs' shares begin differ in their lower bits.
SHARE_BYTES = 257 << 17
PASSES = 4  # over all of the memory in one launch: about 4 ms, so that starting and ending do not matter
REPEATS = 2  # timed launches, after one that is not: changing the kernel changes the split of L1 and shared memory
DEADLINE_S = 2.0  # of a launch
KIB = 1024


@dataclass(frozen=True)
class Way:
    """A way to read: ``unroll`` 16-byte loads per thread at a time, or bulk copies into a ring of ``slots`` chunks.

    Each thread block reads its own contiguous share from end to end, as a worker reads its tape. With ``in_turn`` the
    thread blocks take the pieces of all memory in turn, so that each piece of a thread block lies on another page.
    """

    threads: int
    unroll: int = 0
    slots: int = 0
    chunk_bytes: int = 0
    in_turn: bool = False

    @property
    def name(self) -> str:
        order = ", blocks in turn" if self.in_turn else ""
        if self.slots:
            return f"ring of {self.slots} bulk copies of {self.chunk_bytes // KIB} KiB{order}"
        return f"{self.unroll} loads of 16 bytes by each of {self.threads} threads{order}"

    @property
    def piece_bytes(self) -> int:
        """What a thread block reads at a time."""
        return self.chunk_bytes or self.threads * self.unroll * 16

    @property
    def ring_bytes(self) -> int:
        return self.slots * self.chunk_bytes

    @property
    def shared_bytes(self) -> int:
        return self.ring_bytes + self.slots * 2 * 8  # two mbarriers for each slot


def ring(chunk_kib: int, ring_kib: int, in_turn: bool = False) -> Way:
    return Way(288, slots=ring_kib // chunk_kib, chunk_bytes=chunk_kib * KIB, in_turn=in_turn)


# The ways that are likely to be the best, for decode benchmarks; and all ways, for ``monolane ceiling``.
WAYS = (Way(1024, unroll=4), Way(1024, unroll=8), ring(16, 64), ring(16, 192), ring(32, 192))
SWEEP = (
    Way(512, unroll=8),
    *WAYS[:2],
    *(ring(chunk, size) for chunk in (4, 8, 16, 32) for size in (32, 64, 128, 192) if size >= 2 * chunk),
    Way(1024, unroll=8, in_turn=True),
    ring(16, 192, in_turn=True),
)


@cpp.pointers(memory="const Word4*", times="int64_t*", sum="uint64_t*", arrived="uint32_t*", failed="uint32_t*")
class Launch(Structure):
    """The parameters of the kernel in csrc/read.cu."""

    _fields_ = [
        ("memory", c_void_p),
        ("origin", c_int64),  # distance from the first piece of a thread block to that of the next, in 16-byte words
        ("step", c_int64),  # distance from a piece to the next one of the same thread block, in 16-byte words
        ("times", c_void_p),  # [thread block][began, ended], ns
        ("sum", c_void_p),  # of all 32-bit words of all passes
        ("arrived", c_void_p),  # number of thread blocks that have started; they begin to read together
        ("failed", c_void_p),  # not 0: a thread block waited longer than the deadline
        ("deadline_ns", c_int64),  # for the whole launch
        ("blocks", c_int32),
        ("passes", c_int32),
        ("pieces", c_int32),  # of each thread block, in a pass
        ("chunk_words", c_int32),  # 16-byte words of a bulk copy
        ("slots", c_int32),  # of the ring
        ("unused", c_int32),
    ]


def source(way: Way, header: str = "ptx.cuh") -> str:
    """The source of the kernel that reads in this way. All rings have the same source."""
    constants = f"constexpr int kThreads = {way.threads}, kUnroll = {way.unroll};"
    text = (Path(__file__).parent / "csrc" / "read.cu").read_text()
    return "\n".join([f'#include "{header}"', constants, *cpp.launch_struct(Launch), text])


def launch(way: Way, memory: int, share_bytes: int, blocks: int, passes: int, scratch: Scratch) -> Launch:
    """The kernel's parameters for one launch."""
    pieces, piece_words = share_bytes // way.piece_bytes, way.piece_bytes // 16
    return Launch(
        memory=memory,
        origin=piece_words if way.in_turn else share_bytes // 16,
        step=piece_words * blocks if way.in_turn else piece_words,
        times=scratch.times,
        sum=scratch.sum,
        arrived=scratch.arrived,
        failed=scratch.failed,
        deadline_ns=int(DEADLINE_S * 1e9),
        blocks=blocks,
        passes=passes,
        pieces=pieces,
        chunk_words=way.chunk_bytes // 16,
        slots=way.slots,
    )


@dataclass(frozen=True)
class Scratch:
    """Device addresses of the kernel's results and counters; see ``Launch``."""

    times: int
    sum: int
    arrived: int
    failed: int


class GpuMemory:
    """A context on a GPU, and memory with random content: SHARE_BYTES for each SM."""

    def __init__(self, device: Device) -> None:
        from monolane.target.cuda.driver import Context

        self.blocks = device.processors
        self.context = Context(device)
        size = self.blocks * SHARE_BYTES
        _require_memory(self.context, size)
        self.address = self.context.allocate(size)
        # Random bytes, the same for every SM: reading zeros would draw less power than reading weights.
        share = np.random.default_rng(0).integers(0, 1 << 32, SHARE_BYTES // 4, np.uint32)
        for block in range(self.blocks):
            self.context.write(self.address + block * SHARE_BYTES, share)
        self.sum = self.blocks * int(share.sum(dtype=np.uint64)) % 2**64

    def wait(self, what: str, failed: int) -> None:
        """Wait until the kernel has ended; raises if one of its thread blocks missed the deadline."""
        latest = time.monotonic() + 2 * DEADLINE_S + 1
        while self.context.running():
            if time.monotonic() > latest:
                raise TargetError(f"The measurement of {what} does not end.", "Restart this program, and report it.")
        flag = np.zeros(1, np.uint32)
        self.context.download(failed, flag)
        if flag[0]:
            raise TargetError(f"A worker waited longer than {DEADLINE_S:g} s ({what}).", "End other use of the GPU.")

    def close(self) -> None:
        self.context.close()


class GpuReadCeiling:
    """Compiled readers over a GPU's memory; each call of ``measure`` is one fresh measurement."""

    def __init__(self, device: Device, ways: Sequence[Way] = WAYS) -> None:
        ways = [way for way in ways if way.shared_bytes <= device.shared_limit]
        sources = {way: source(way) for way in ways}
        cubins = {text: compile_kernel(text, device.architecture).cubin for text in dict.fromkeys(sources.values())}
        self.memory = GpuMemory(device)
        context = self.memory.context
        most = max(way.shared_bytes for way in ways)
        kernels = {text: context.load(cubin, most) for text, cubin in cubins.items()}
        self._kernels = {way: kernels[text] for way, text in sources.items()}
        self._scratch = Scratch(*(context.allocate(size) for size in (2 * 8 * self.memory.blocks, 8, 4, 4)))

    def measure(self) -> dict[str, float]:
        """Bytes per second by way of reading; the highest is the ceiling."""
        self.memory.context.enter()
        found = {}
        for way, kernel in self._kernels.items():
            self._once(way, kernel)
            found[way.name] = max(self._once(way, kernel) for _ in range(REPEATS))
        return found

    def close(self) -> None:
        self.memory.close()

    def _once(self, way: Way, kernel: Kernel) -> float:
        """Bytes per second of one launch."""
        memory, scratch = self.memory, self._scratch
        for address, size in ((scratch.sum, 8), (scratch.arrived, 4), (scratch.failed, 4)):
            memory.context.clear(address, size)
        given = launch(way, memory.address, SHARE_BYTES, memory.blocks, PASSES, scratch)
        memory.context.launch(kernel, memory.blocks, way.threads, way.shared_bytes, given)
        memory.wait(way.name, scratch.failed)
        times, total = np.zeros((memory.blocks, 2), np.int64), np.zeros(1, np.uint64)
        memory.context.download(scratch.times, times)
        memory.context.download(scratch.sum, total)
        if int(total[0]) != PASSES * memory.sum % 2**64:
            raise TargetError(f"The reader ({way.name}) did not read all of its memory.")
        seconds = (times[:, 1].max() - times[:, 0].min()) * 1e-9
        return float(PASSES * memory.blocks * SHARE_BYTES / seconds)


def _require_memory(context: Context, size: int) -> None:
    if size > context.free_memory():
        raise ResourceError(
            f"Measuring the read ceiling needs {human_size(size)} of GPU memory, "
            f"but only {human_size(context.free_memory())} are free.",
            "End other programs that use the GPU.",
        )
