"""Latencies of a GPU: hand-offs and barriers among all thread blocks, while memory is idle and while it streams; a
kernel launch; the round trip of a word between the kernel and the host."""

from __future__ import annotations

import time
from ctypes import Structure, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from monolane.bench.ceiling.read_gpu import DEADLINE_S, SHARE_BYTES, GpuMemory
from monolane.bench.ceiling.result import BARRIER, HANDOFF, Wait
from monolane.errors import TargetError
from monolane.target import cpp
from monolane.target.cuda.jit import compile_kernel

ROUNDS, WARM_UP = 2000, 200  # hand-offs of a launch: some 5 ms
CHUNK_BYTES = 16384
IN_FLIGHT = (2, 4, 12)  # bulk copies of each thread block: few, twice as many, and a whole ring
THREADS = 288
REPEATS = 3
LAUNCHES, ANSWERS = 50, 1000


@cpp.pointers(
    memory="const Word4*",
    words="uint64_t*",
    arrived="uint32_t*",
    failed="uint32_t*",
    sum="uint64_t*",
    stamps="int64_t*",
)
class HandoffLaunch(Structure):
    """The parameters of the kernel in csrc/handoff.cu."""

    _fields_ = [
        ("memory", c_void_p),
        ("share_chunks", c_int64),  # chunks of memory that each thread block streams repeatedly
        ("words", c_void_p),  # tagged words, [2][thread block]: the round in the upper 32 bits, a number in the lower
        ("arrived", c_void_p),  # the counter of the barriers
        ("failed", c_void_p),  # not 0: a thread block waited longer than the deadline
        ("sum", c_void_p),  # of all numbers that all thread blocks have read
        ("stamps", c_void_p),  # [thread block][5]: rounds began, ended, streaming began, ended (ns), chunks streamed
        ("deadline_ns", c_int64),  # for the whole launch
        ("blocks", c_int32),
        ("rounds", c_int32),  # that are timed
        ("warm_up", c_int32),  # rounds before them
        ("barriers", c_int32),  # 1: barriers on one counter, 0: tagged words
        ("in_flight", c_int32),  # bulk copies in flight per thread block; 0: memory is idle
        ("unused", c_int32),
    ]


@cpp.pointers(kernel_word="uint32_t*", host_word="const uint32_t*", took="int64_t*", failed="uint32_t*")
class AnswerLaunch(Structure):
    """The parameters of the kernel in csrc/answer.cu."""

    _fields_ = [
        ("kernel_word", c_void_p),  # in host memory, written by the kernel: the round, and rounds + 1 at the end
        ("host_word", c_void_p),  # in host memory, written by the host: the round that it answers
        ("took", c_void_p),  # [round]: ns from writing kernel_word to seeing the answer in host_word
        ("failed", c_void_p),  # not 0: the host did not answer in time
        ("deadline_ns", c_int64),  # for the whole launch
        ("rounds", c_int32),
        ("unused", c_int32),
    ]


SOURCES = {"handoff": HandoffLaunch, "answer": AnswerLaunch}
FILES = {"handoff": ("stream.cuh", "handoff.cu"), "answer": ("answer.cu",)}


def source(name: str, header: str = "ptx.cuh") -> str:
    """The source of the kernel: the lines that its .cu file needs before it, and the file."""
    folder = Path(__file__).parent / "csrc"
    texts = [(folder / file).read_text() for file in FILES[name]]
    return "\n".join([f'#include "{header}"', *cpp.launch_struct(SOURCES[name]), *texts])


def shared_bytes(in_flight: int) -> int:
    return in_flight * (CHUNK_BYTES + 16) + 16  # the chunks, an mbarrier for each, padded, and flags


def expected_sum(blocks: int, rounds: int) -> int:
    """The sum of the numbers that all thread blocks read in all rounds, modulo 2**64.

    In each round every thread block publishes its index + the round, and every thread block reads all of them.
    """
    per_reader = rounds * blocks * (blocks - 1) // 2 + blocks * rounds * (rounds + 1) // 2
    return blocks * per_reader % 2**64


def hand_offs(memory: GpuMemory) -> list[Wait]:
    """Time hand-offs and barriers, while memory is idle and with each number of copies in flight."""
    blocks, context = memory.blocks, memory.context
    device = context.device
    fitting = [copies for copies in IN_FLIGHT if shared_bytes(copies) <= device.shared_limit]
    kernel = context.load(compile_kernel(source("handoff"), device.architecture).cubin, shared_bytes(max(fitting)))
    cleared = {"words": 2 * 8 * blocks, "arrived": 4, "failed": 4, "sum": 8, "stamps": 5 * 8 * blocks}
    addresses = {name: context.allocate(size) for name, size in cleared.items()}

    def once(barriers: bool, in_flight: int) -> tuple[float, float]:
        for name, size in cleared.items():
            context.clear(addresses[name], size)
        given = HandoffLaunch(
            memory=memory.address,
            share_chunks=SHARE_BYTES // CHUNK_BYTES,
            deadline_ns=int(DEADLINE_S * 1e9),
            blocks=blocks,
            rounds=ROUNDS,
            warm_up=WARM_UP,
            barriers=barriers,
            in_flight=in_flight,
            **addresses,
        )
        context.launch(kernel, blocks, THREADS, shared_bytes(in_flight), given)
        memory.wait("hand-offs", addresses["failed"])
        stamps, total = np.zeros((blocks, 5), np.int64), np.zeros(1, np.uint64)
        context.download(addresses["stamps"], stamps)
        context.download(addresses["sum"], total)
        if not barriers and int(total[0]) != expected_sum(blocks, WARM_UP + ROUNDS):
            raise TargetError("A hand-off delivered other numbers than were published.", "Report this as a bug.")
        return of_stamps(stamps, ROUNDS)

    context.enter()
    found = []
    for what, barriers in ((HANDOFF, False), (BARRIER, True)):
        for in_flight in (0, *fitting):
            once(barriers, in_flight)
            us, speed = min(once(barriers, in_flight) for _ in range(REPEATS))
            found.append(Wait(what, in_flight * CHUNK_BYTES, us, speed))
    return found


def of_stamps(stamps: np.ndarray[tuple[int, ...], np.dtype[np.int64]], rounds: int) -> tuple[float, float]:
    """The mean time of a round in µs, and the bytes per second that the copies streamed meanwhile."""
    us = float(stamps[:, 1].max() - stamps[:, 0].min()) / 1e3 / rounds
    if not stamps[:, 4].any():
        return us, 0.0
    seconds = float(stamps[:, 3].max() - stamps[:, 2].min()) * 1e-9
    return us, float(stamps[:, 4].sum()) * CHUNK_BYTES / seconds


@dataclass(frozen=True)
class HostWords:
    """Two words in pinned host memory: the kernel writes one and polls the other."""

    kernel_word: c_uint32  # written by the kernel
    host_word: c_uint32  # written by the host

    def answer(self, rounds: int, deadline_s: float = DEADLINE_S) -> None:
        """Poll the kernel's word and copy each new value to the host's word, until the kernel has ended."""
        latest = time.perf_counter() + 2 * deadline_s
        seen = 0
        while seen <= rounds:
            word = self.kernel_word.value
            if word != seen:
                seen = word
                self.host_word.value = word
            elif time.perf_counter() > latest:
                raise TargetError(
                    "The GPU does not write to the host's memory.", "Restart this program, and report it."
                )


class HostLink:
    """Measures, with the kernel of csrc/answer.cu, how long a launch takes and a word's round trip to the host."""

    def __init__(self, memory: GpuMemory) -> None:
        self._memory, context = memory, memory.context
        self._kernel = context.load(compile_kernel(source("answer"), context.device.architecture).cubin, 0)
        lines = context.host_memory(256)  # the two words lie 128 bytes apart, on different cache lines
        self._words = HostWords(c_uint32.from_address(lines), c_uint32.from_address(lines + 128))
        self._took, self._failed = context.allocate(8 * ANSWERS), context.allocate(4)
        context.clear(self._failed, 4)
        self._given = AnswerLaunch(lines, lines + 128, self._took, self._failed, int(DEADLINE_S * 1e9))

    def launch_us(self) -> tuple[float, float]:
        """Median times from the call that launches a grid until the host sees its first word, and until its end."""
        begins, ends = [], []
        for _ in range(LAUNCHES):
            began = self._launch(0)
            self._words.answer(0)
            begins.append(time.perf_counter() - began)
            self._memory.wait("a launch", self._failed)
            ends.append(time.perf_counter() - began)
        return median(begins) * 1e6, median(ends) * 1e6

    def round_trip_us(self) -> float:
        """The median by the device's clock. The host polls in a Python loop."""
        self._launch(ANSWERS)
        self._words.answer(ANSWERS)
        self._memory.wait("answers of the host", self._failed)
        took = np.zeros(ANSWERS, np.int64)
        self._memory.context.download(self._took, took)
        return float(np.median(took)) / 1e3

    def _launch(self, rounds: int) -> float:
        """Launch the kernel; returns the host's time just before the call."""
        self._words.kernel_word.value = self._words.host_word.value = 0
        self._given.rounds = rounds
        began = time.perf_counter()
        self._memory.context.launch(self._kernel, self._memory.blocks, 32, 0, self._given)
        return began
