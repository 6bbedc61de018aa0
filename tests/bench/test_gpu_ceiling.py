"""The kernels of the GPU's ceiling, in the emulation, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_uint32

import numpy as np
import pytest
from emulated_bench import EmulatedKernel, aligned_words

from monolane.bench.ceiling import latency_gpu, read_gpu
from monolane.bench.ceiling.latency_gpu import CHUNK_BYTES, THREADS, AnswerLaunch, HandoffLaunch, HostWords
from monolane.bench.ceiling.read_gpu import SHARE_BYTES, SWEEP, WAYS, Scratch, Way, ring
from monolane.errors import TargetError
from monolane.target.cuda import jit
from monolane.target.cuda.opening import find_gpu

SHORT_NS, LONG_NS = 50_000_000, 60_000_000_000
SMALL_WAYS = (
    Way(64, unroll=2),
    Way(64, unroll=2, in_turn=True),
    Way(96, slots=3, chunk_bytes=2048),
    Way(96, slots=2, chunk_bytes=4096, in_turn=True),
)


@pytest.mark.parametrize("way", SMALL_WAYS, ids=lambda way: way.name)
def test_every_byte_is_read_in_every_pass(way: Way) -> None:
    blocks, passes, share = 2, 3, 5 * 4096  # an odd number of chunks: the ring wraps within a pass
    memory = aligned_words(blocks * share // 4)
    times, counts = np.zeros((blocks, 2), np.int64), np.zeros(4, np.uint64)
    at = counts.ctypes.data
    scratch = Scratch(times.ctypes.data, at, at + 8, at + 16)
    given = read_gpu.launch(way, memory.ctypes.data, share, blocks, passes, scratch)
    given.deadline_ns = LONG_NS
    EmulatedKernel(read_gpu.source(way, "emulate.hpp")).run(given, blocks, way.threads, way.shared_bytes)
    assert int(counts[0]) == passes * int(memory.sum(dtype=np.uint64))
    assert counts[2] == 0  # nobody was late
    assert counts[1] == blocks  # all came before anybody's time began
    assert (times[:, 0] > 0).all()
    assert (times[:, 0] <= times[:, 1]).all()


class Handoffs:
    """The kernel of hand-offs, with all the memory that it needs."""

    def __init__(self, blocks: int, barriers: bool, in_flight: int) -> None:
        self.memory = aligned_words(blocks * 3 * CHUNK_BYTES // 4)
        self.words, self.stamps = np.zeros(2 * (blocks + 1), np.uint64), np.zeros((blocks, 5), np.int64)
        self.arrived, self.failed, self.sum = (np.zeros(1, np.uint64) for _ in range(3))
        self.blocks = blocks
        self.given = HandoffLaunch(
            memory=self.memory.ctypes.data,
            share_chunks=3,
            words=self.words.ctypes.data,
            arrived=self.arrived.ctypes.data,
            failed=self.failed.ctypes.data,
            sum=self.sum.ctypes.data,
            stamps=self.stamps.ctypes.data,
            deadline_ns=LONG_NS,
            blocks=blocks,
            rounds=6,
            warm_up=3,
            barriers=barriers,
            in_flight=in_flight,
        )

    def run(self) -> None:
        shared = latency_gpu.shared_bytes(self.given.in_flight)
        source = latency_gpu.source("handoff", "emulate.hpp")
        EmulatedKernel(source).run(self.given, self.blocks, THREADS, shared)


@pytest.mark.parametrize("in_flight", [0, 2])
def test_every_block_reads_what_every_block_has_published(in_flight: int) -> None:
    found = Handoffs(3, barriers=False, in_flight=in_flight)
    found.run()
    assert int(found.sum[0]) == latency_gpu.expected_sum(3, 9)
    assert found.failed[0] == 0
    assert (found.stamps[:, 4] > 0).all() == bool(in_flight)
    us, speed = latency_gpu.of_stamps(found.stamps, 6)
    assert us > 0
    assert (speed > 0) == bool(in_flight)


def test_every_block_comes_to_every_barrier() -> None:
    found = Handoffs(3, barriers=True, in_flight=1)
    found.run()
    assert int(found.arrived[0]) == 3 * 9
    assert found.failed[0] == 0


@pytest.mark.parametrize("barriers", [False, True])
def test_a_block_that_never_comes_is_an_error_and_not_a_hang(barriers: bool) -> None:
    found = Handoffs(2, barriers, in_flight=2)
    found.given.blocks, found.given.deadline_ns = 3, SHORT_NS  # one more than there are
    found.run()
    assert found.failed[0] == 1


@contextmanager
def talking_kernel(rounds: int, deadline_ns: int) -> Iterator[tuple[HostWords, np.ndarray, np.ndarray]]:
    words = HostWords(c_uint32(0), c_uint32(0))
    took, failed = np.zeros(rounds, np.int64), np.zeros(1, np.uint32)
    given = AnswerLaunch(
        kernel_word=ctypes.addressof(words.kernel_word),
        host_word=ctypes.addressof(words.host_word),
        took=took.ctypes.data,
        failed=failed.ctypes.data,
        deadline_ns=deadline_ns,
        rounds=rounds,
    )
    kernel = EmulatedKernel(latency_gpu.source("answer", "emulate.hpp"))
    running = threading.Thread(target=kernel.run, args=(given, 1, 32, 0))
    running.start()
    yield words, took, failed
    running.join()


def test_the_host_answers_every_word_of_the_kernel() -> None:
    with talking_kernel(5, LONG_NS) as (words, took, failed):
        words.answer(5, deadline_s=60)
    assert words.kernel_word.value == 6  # it has ended
    assert (took > 0).all()
    assert failed[0] == 0


def test_a_host_that_does_not_answer_is_given_up() -> None:
    with talking_kernel(5, SHORT_NS) as (_, _, failed):
        pass
    assert failed[0] == 1


def test_a_kernel_that_says_nothing_is_given_up() -> None:
    with pytest.raises(TargetError, match="does not write"):
        HostWords(c_uint32(0), c_uint32(0)).answer(3, deadline_s=0.01)


def test_a_round_is_timed_from_the_first_beginning_to_the_last_end() -> None:
    stamps = np.array([[1000, 9000, 0, 10_000, 3], [2000, 11_000, 500, 16_384, 5]])
    us, speed = latency_gpu.of_stamps(stamps, 5)
    assert us == 2.0
    assert speed == pytest.approx(8 * CHUNK_BYTES / 16_384e-9)


KERNELS = {way.name: (read_gpu.source(way), way.threads) for way in (*SWEEP[:3], ring(16, 64))}
KERNELS |= {name: (latency_gpu.source(name), THREADS) for name in ("handoff", "answer")}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_the_gpu_without_spills(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    source, threads = KERNELS[name]
    resources = jit.compile_kernel(source, "sm_90a").resources
    assert resources.spill_store_bytes == 0
    assert resources.registers * threads <= 65536  # of one multiprocessor


def test_no_way_to_read_is_measured_without_being_compiled_above() -> None:
    assert {read_gpu.source(way) for way in (*SWEEP, *WAYS)} <= {source for source, _ in KERNELS.values()}


def test_shares_are_whole_pieces_of_every_way() -> None:
    for way in (*WAYS, *SWEEP):
        assert SHARE_BYTES % way.piece_bytes == 0
        assert way.shared_bytes <= 227 << 10
    assert SHARE_BYTES % CHUNK_BYTES == 0


@pytest.mark.gpu
@pytest.mark.skipif(find_gpu() is None, reason="needs an NVIDIA GPU that the kernel runs on")
def test_the_ceiling_of_a_gpu() -> None:
    device = find_gpu()
    assert device is not None
    ceiling = read_gpu.GpuReadCeiling(device)
    assert ceiling.measure().keys() == {way.name for way in WAYS}  # it raises where a byte was not read
    assert len(latency_gpu.hand_offs(ceiling.memory)) == 8  # it raises where a word did not arrive
    link = latency_gpu.HostLink(ceiling.memory)
    begun_us, ended_us = link.launch_us()
    assert 0 < begun_us <= ended_us
    assert link.round_trip_us() > 0
    ceiling.close()
