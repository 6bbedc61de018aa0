"""What waiting costs on a GPU: hand-offs and barriers of all blocks, with idle and with streaming memory; a launch; a
word to the host and back."""

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
IN_FLIGHT = (2, 4, 12)  # chunks of each block: as few as fill the memory's pipeline, twice that, and a whole ring
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
    """What csrc/handoff.cu is given."""

    _fields_ = [
        ("memory", c_void_p),
        ("share_chunks", c_int64),  # of the memory that each thread block streams, again and again
        ("words", c_void_p),  # [2][thread block]: round in the upper half, a number in the lower
        ("arrived", c_void_p),  # at barriers, all thread blocks together
        ("failed", c_void_p),  # not 0: a thread block waited longer than it may
        ("sum", c_void_p),  # of all numbers that all thread blocks have read
        ("stamps", c_void_p),  # [thread block]: rounds began, ended, streaming began, ended (ns), chunks streamed
        ("deadline_ns", c_int64),  # for the whole launch
        ("blocks", c_int32),
        ("rounds", c_int32),
        ("warm_up", c_int32),  # rounds before those
        ("barriers", c_int32),  # 1: a counter, 0: tagged words
        ("in_flight", c_int32),  # chunks of each thread block; 0: memory is idle
        ("unused", c_int32),
    ]


@cpp.pointers(said="uint32_t*", heard="const uint32_t*", took="int64_t*", failed="uint32_t*")
class AnswerLaunch(Structure):
    """What csrc/answer.cu is given."""

    _fields_ = [
        ("said", c_void_p),  # in the host's memory: the round; one more than there are when the kernel has ended
        ("heard", c_void_p),  # in the host's memory
        ("took", c_void_p),  # [round], ns from saying to hearing
        ("failed", c_void_p),  # not 0: the host did not answer in time
        ("deadline_ns", c_int64),  # for the whole launch
        ("rounds", c_int32),
        ("unused", c_int32),
    ]


SOURCES = {"handoff": HandoffLaunch, "answer": AnswerLaunch}


def source(name: str, header: str = "ptx.cuh") -> str:
    text = (Path(__file__).parent / "csrc" / f"{name}.cu").read_text()
    return "\n".join([f'#include "{header}"', *cpp.launch_struct(SOURCES[name]), text])


def shared_bytes(in_flight: int) -> int:
    return in_flight * (CHUNK_BYTES + 8) + 16  # chunks, a barrier for each, flags


def expected_sum(blocks: int, rounds: int) -> int:
    """Of the numbers that every block reads of every block: block + round."""
    per_reader = rounds * blocks * (blocks - 1) // 2 + blocks * rounds * (rounds + 1) // 2
    return blocks * per_reader % 2**64


def hand_offs(memory: GpuMemory) -> list[Wait]:
    """Tagged words and one counter, idle and with ever more copies in flight."""
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
            raise TargetError("A hand-off did not bring what was published.", "Report this as a bug.")
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
    """Microseconds of a round, and bytes per second that streamed meanwhile."""
    us = float(stamps[:, 1].max() - stamps[:, 0].min()) / 1e3 / rounds
    if not stamps[:, 4].any():
        return us, 0.0
    seconds = float(stamps[:, 3].max() - stamps[:, 2].min()) * 1e-9
    return us, float(stamps[:, 4].sum()) * CHUNK_BYTES / seconds


@dataclass(frozen=True)
class HostWords:
    """Two words that host and kernel both see."""

    said: c_uint32  # by the kernel
    heard: c_uint32  # by the kernel, said by the host

    def answer(self, rounds: int, deadline_s: float = DEADLINE_S) -> None:
        """Answer each round's word with the same, until the kernel ends."""
        latest = time.perf_counter() + 2 * deadline_s
        seen = 0
        while seen <= rounds:
            word = self.said.value
            if word != seen:
                seen = word
                self.heard.value = word
            elif time.perf_counter() > latest:
                raise TargetError(
                    "The GPU does not write to the host's memory.", "Restart this program, and report it."
                )


class HostLink:
    """A kernel that talks with the host: how long a launch takes, and a word there and back."""

    def __init__(self, memory: GpuMemory) -> None:
        self._memory, context = memory, memory.context
        self._kernel = context.load(compile_kernel(source("answer"), context.device.architecture).cubin, 0)
        lines = context.host_memory(256)  # a cache line for each word, and some between
        self._words = HostWords(c_uint32.from_address(lines), c_uint32.from_address(lines + 128))
        self._took, self._failed = context.allocate(8 * ANSWERS), context.allocate(4)
        context.clear(self._failed, 4)
        self._given = AnswerLaunch(lines, lines + 128, self._took, self._failed, int(DEADLINE_S * 1e9))

    def launch_us(self) -> tuple[float, float]:
        """From the call that launches a grid to its first word seen by the host, and to its end: medians."""
        begins, ends = [], []
        for _ in range(LAUNCHES):
            began = self._launch(0)
            self._words.answer(0)
            begins.append(time.perf_counter() - began)
            self._memory.wait("a launch", self._failed)
            ends.append(time.perf_counter() - began)
        return median(begins) * 1e6, median(ends) * 1e6

    def round_trip_us(self) -> float:
        """By the device's clock, with a host that waits in a Python loop: median."""
        self._launch(ANSWERS)
        self._words.answer(ANSWERS)
        self._memory.wait("answers of the host", self._failed)
        took = np.zeros(ANSWERS, np.int64)
        self._memory.context.download(self._took, took)
        return float(np.median(took)) / 1e3

    def _launch(self, rounds: int) -> float:
        """When it was asked for."""
        self._words.said.value = self._words.heard.value = 0
        self._given.rounds = rounds
        began = time.perf_counter()
        self._memory.context.launch(self._kernel, self._memory.blocks, 32, 0, self._given)
        return began
