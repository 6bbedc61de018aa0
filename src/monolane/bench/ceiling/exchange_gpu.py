"""Exchanges among lanes of a GPU, each a group of its SMs: an all-reduce, while memory is idle and while it streams."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from monolane.bench.ceiling.latency_gpu import CHUNK_BYTES, shared_bytes
from monolane.bench.ceiling.read_gpu import DEADLINE_S, SHARE_BYTES, GpuMemory
from monolane.bench.ceiling.result import Exchange
from monolane.errors import TargetError
from monolane.target import cpp
from monolane.target.cuda.jit import compile_kernel

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Kernel

LANES = (2, 4, 8)
VALUES = (1, 16, 256, 1024, 3072, 4096, 8192, 16384)
IN_FLIGHT = (0, 2, 4, 8)  # bulk copies of 16 KiB of each worker; 0: memory is idle
ROUNDS, WARM_UP = 1000, 100  # exchanges of a launch
REPEATS = 2
THREADS = 288
MOST_ONE_HOP_WORDS = 8192  # that a worker reads in one hop: with more, two hops are faster by far
MANY_COPIES = 64  # of mailboxes, where some workers write nothing
LINE_VALUES = 16  # fp32 values with their tags in a line of 128 bytes
PATTERNS = 16  # partials repeat after so many rounds (kPatterns in csrc/exchange.cu)
POISON = 0xFF  # of every byte that a launch has not written: no round has such a tag, and the value is not a number


class Protocol(IntEnum):
    """How far a round goes; csrc/exchange.cu explains them."""

    OWN_ROWS = 0  # until every worker has the sums of its own rows
    TWO_HOPS = 1  # until every worker has all sums: its lane's hand-off follows
    ONE_HOP = 2  # likewise, but every worker adds all partials itself


@cpp.pointers(
    memory="const Word4*",
    mailboxes="LongWord2*",
    words="uint32_t*",
    received="float*",
    confirmed="uint32_t*",
    finished="uint32_t*",
    failed="uint32_t*",
    sum="uint64_t*",
    stamps="int64_t*",
)
class ExchangeLaunch(Structure):
    """The parameters of the kernel in csrc/exchange.cu."""

    _fields_ = [
        ("memory", c_void_p),
        ("share_chunks", c_int64),  # chunks of memory that each worker streams repeatedly
        ("mailboxes", c_void_p),  # [copy][to lane][from lane][pair of rows]: 64-bit tagged words, fp32 value and round
        ("words", c_void_p),  # [copy][lane][row]: 32-bit tagged words, bf16 value and round
        ("received", c_void_p),  # [worker][row]: the sums that a worker has after the last round
        ("confirmed", c_void_p),  # number of confirmations of all workers
        ("finished", c_void_p),  # number of workers that have ended their rounds
        ("failed", c_void_p),  # not 0: a worker waited longer than the deadline
        (
            "sum",
            c_void_p,
        ),  # of the bits of all values received; every thread adds its own modulo 2**32
        ("stamps", c_void_p),  # [worker][5]: rounds began, ended, streaming began, ended (ns), chunks streamed
        ("deadline_ns", c_int64),  # for the whole launch
        ("workers", c_int32),  # of each lane
        ("values", c_int32),  # a multiple of 4
        ("rounds", c_int32),  # that are timed
        ("warm_up", c_int32),  # rounds before them
        ("protocol", c_int32),
        ("copies", c_int32),  # of mailboxes and words: a power of two
        ("in_flight", c_int32),  # bulk copies in flight per worker; 0: memory is idle
        ("unused", c_int32),
    ]


def source(lanes: int, header: str = "ptx.cuh") -> str:
    """The source of the kernel for so many lanes: the lines that exchange.cu needs before it, and the file."""
    stream, text = ((Path(__file__).parent / "csrc" / name).read_text() for name in ("stream.cuh", "exchange.cu"))
    fixed = [cpp.enum(Protocol), *cpp.integer_constants({"kLanes": lanes})]
    return "\n".join([f'#include "{header}"', *fixed, *cpp.launch_struct(ExchangeLaunch), stream, text])


class GpuExchange:
    """The kernel for one number of lanes, with the memory that it needs for up to ``most`` values."""

    def __init__(self, memory: GpuMemory, lanes: int, most: int = VALUES[-1]) -> None:
        context = memory.context
        self.lanes, self.workers = lanes, memory.blocks // lanes
        self._memory = memory
        self._fitting = context.device.shared_limit
        self._kernel = self._load(lanes)
        blocks = lanes * self.workers
        copied = max(_copies(values, self.workers) * _rounded(values, LINE_VALUES) for values in (*VALUES, most))
        self._poisoned = {
            "mailboxes": copied * lanes * lanes * 8,
            "words": copied * lanes * 4,
            "received": blocks * _rounded(most, 4) * 4,
        }
        self._cleared = {"confirmed": 4, "finished": 4, "failed": 4, "sum": 8, "stamps": 5 * 8 * blocks}
        sizes = {**self._poisoned, **self._cleared}
        self._addresses = {name: context.allocate(size) for name, size in sizes.items()}

    def fits(self, values: int, in_flight: int) -> bool:
        return exchange_shared_bytes(values, in_flight) <= self._fitting

    def measure(self, protocol: Protocol, values: int, in_flight: int) -> tuple[float, float]:
        """The mean time of a round in µs, and the bytes per second that were streamed meanwhile. The best launch."""
        self._once(protocol, values, in_flight)
        return min(self._once(protocol, values, in_flight) for _ in range(REPEATS))

    def _load(self, lanes: int) -> Kernel:
        context = self._memory.context
        cubin = compile_kernel(source(lanes), context.device.architecture).cubin
        return context.load(cubin, context.device.shared_limit)

    def _once(self, protocol: Protocol, values: int, in_flight: int) -> tuple[float, float]:
        context, blocks = self._memory.context, self.lanes * self.workers
        for name, size in self._poisoned.items():
            context.clear(self._addresses[name], size, POISON)
        for name, size in self._cleared.items():
            context.clear(self._addresses[name], size)
        padded = _rounded(values, 4)
        given = ExchangeLaunch(
            memory=self._memory.address,
            share_chunks=SHARE_BYTES // CHUNK_BYTES,
            deadline_ns=int(DEADLINE_S * 1e9),
            workers=self.workers,
            values=padded,
            rounds=ROUNDS,
            warm_up=WARM_UP,
            protocol=protocol,
            copies=_copies(padded, self.workers),
            in_flight=in_flight,
            **self._addresses,
        )
        context.launch(self._kernel, blocks, THREADS, exchange_shared_bytes(values, in_flight), given)
        self._memory.wait("exchanges", self._addresses["failed"])
        stamps, total = np.zeros((blocks, 5), np.int64), np.zeros(1, np.uint64)
        received = np.zeros((self.lanes, self.workers, padded), np.float32)
        for name, array in (("stamps", stamps), ("sum", total), ("received", received)):
            context.download(self._addresses[name], array)
        check(protocol, received, int(total[0]), WARM_UP + ROUNDS)
        return of_stamps(stamps, ROUNDS)


def exchanges(memory: GpuMemory) -> list[Exchange]:
    """Time exchanges of all sizes among all numbers of lanes. Every worker has all sums in the faster of two ways."""
    memory.context.enter()
    found = []
    for lanes in (lanes for lanes in LANES if lanes <= memory.blocks):
        exchange = GpuExchange(memory, lanes)
        sizes = [(values, copies) for values in VALUES for copies in IN_FLIGHT if exchange.fits(values, copies)]
        for values, in_flight in sizes:
            own_us, _ = exchange.measure(Protocol.OWN_ROWS, values, in_flight)
            ways = [(*exchange.measure(Protocol.TWO_HOPS, values, in_flight), 2)]
            if lanes * values <= MOST_ONE_HOP_WORDS:
                ways.append((*exchange.measure(Protocol.ONE_HOP, values, in_flight), 1))
            us, speed, hops = min(ways)
            found.append(Exchange(lanes, exchange.workers, values, in_flight * CHUNK_BYTES, us, own_us, hops, speed))
    return found


def exchange_shared_bytes(values: int, in_flight: int) -> int:
    return shared_bytes(in_flight) + 4 * _rounded(values, 4)


def of_stamps(stamps: NDArray[np.int64], rounds: int) -> tuple[float, float]:
    """The mean time of a round in µs, and the bytes per second that the copies streamed meanwhile.

    Workers begin at different times, and those without rows have nothing to do in ``OWN_ROWS``, so the longest counts.
    """
    us = float((stamps[:, 1] - stamps[:, 0]).max()) / 1e3 / rounds
    if not stamps[:, 4].any():
        return us, 0.0
    seconds = float(stamps[:, 3].max() - stamps[:, 2].min()) * 1e-9
    return us, float(stamps[:, 4].sum()) * CHUNK_BYTES / seconds


def partials(values: int, round_: int, lanes: int) -> NDArray[np.float32]:
    """[lane][row]: what the lanes add in a round (``partial`` in csrc/exchange.cu)."""
    rows, ranks = np.arange(values, dtype=np.uint32), np.arange(lanes, dtype=np.uint32)[:, None]
    bits = rows << np.uint32(8) | np.uint32(round_ % PATTERNS << 4) | ranks
    bits = bits * np.uint32(0x9E3779B1)
    bits = (bits ^ bits >> np.uint32(15)) * np.uint32(0x85EBCA77)
    return bits.view(np.int32).astype(np.float32) * np.float32(2.0**-24)


@lru_cache(maxsize=4 * PATTERNS)  # a size is measured several times in a row
def sums(protocol: Protocol, values: int, round_: int, lanes: int) -> NDArray[np.float32]:
    """[row]: what a worker has at the end of a round."""
    total, *others = partials(values, round_, lanes)
    for other in others:  # in the order of the lanes, as the kernel does
        total = total + other
    return _bf16(total) if protocol == Protocol.TWO_HOPS else total


def check(protocol: Protocol, received: NDArray[np.float32], bits: int, rounds: int) -> None:
    """Compare what the workers received ([lane][worker][row]) with the sums of all lanes, bit for bit.

    ``bits`` is the sum of the bits of everything that was received in all rounds; ``received`` is of the last one.
    """
    lanes, workers, values = received.shape
    expected = [sums(protocol, values, round_, lanes).view(np.uint32) for round_ in range(PATTERNS)]
    times = np.bincount(np.arange(1, rounds + 1) % PATTERNS, minlength=PATTERNS)
    readers = lanes if protocol == Protocol.OWN_ROWS else lanes * workers
    totals = (int(each.sum(dtype=np.uint64)) for each in expected)
    of_all = readers * sum(int(count) * total for count, total in zip(times, totals, strict=True))
    last = received.view(np.uint32) == expected[rounds % PATTERNS]
    if protocol == Protocol.OWN_ROWS:  # other rows are not received
        last |= ~_owned(values, workers)
    # The kernel's threads count modulo 2**32 and their counts are added, so only the lower 32 bits are known.
    if not last.all() or (bits - of_all) % 2**32:
        raise TargetError("An exchange delivered other sums than the lanes' partials have.", "Report this as a bug.")


def _owned(values: int, workers: int) -> NDArray[np.bool_]:
    """[worker][row]: whether the row is one of the worker's own: whole lines, divided as evenly as possible."""
    lines = _rounded(values, LINE_VALUES) // LINE_VALUES
    bounds = np.arange(workers + 1) * lines // workers * LINE_VALUES
    rows = np.arange(values)
    return (bounds[:-1, None] <= rows) & (rows < bounds[1:, None])


def _copies(values: int, workers: int) -> int:
    """Two where every worker writes something."""
    return 2 if values >= LINE_VALUES * workers else MANY_COPIES


def _rounded(values: int, unit: int) -> int:
    return -(-values // unit) * unit


def _bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to bf16, to nearest even."""
    bits = values.view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return ((bits + odd + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)).view(np.float32)
