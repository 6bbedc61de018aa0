"""Exchanges among lanes of a GPU, in the emulation, and on a GPU where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_bench import EmulatedContext, compile_emulated

from monolane.bench.ceiling import exchange_gpu
from monolane.bench.ceiling.exchange_gpu import IN_FLIGHT, LANES, THREADS, VALUES, GpuExchange, Protocol
from monolane.bench.ceiling.latency_gpu import CHUNK_BYTES
from monolane.errors import TargetError
from monolane.target.cuda import jit
from monolane.target.cuda.opening import find_gpu


class EmulatedMemory:
    """What ``GpuMemory`` offers, on the fibers of the emulation."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.context: Any = EmulatedContext(SimpleNamespace(shared_limit=227 << 10, architecture="threads"))
        self.address = self.context.allocate(blocks * 3 * CHUNK_BYTES)

    def wait(self, what: str, failed: int) -> None:
        while self.context.running():
            pass
        flag = np.zeros(1, np.uint32)
        self.context.download(failed, flag)
        if flag[0]:
            raise TargetError(f"A worker waited too long ({what}).")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_gpu, "compile_kernel", compile_emulated)
    for name, few in (("ROUNDS", 5), ("WARM_UP", 3), ("REPEATS", 1), ("MANY_COPIES", 4)):
        monkeypatch.setattr(exchange_gpu, name, few)
    monkeypatch.setattr(exchange_gpu, "SHARE_BYTES", 3 * CHUNK_BYTES)
    monkeypatch.setattr(exchange_gpu, "DEADLINE_S", 60.0)


# Workers without rows; one line for each worker; a ragged division; more rows than threads.
@pytest.mark.parametrize(
    ("lanes", "workers", "values"), [(2, 3, 1), (4, 2, 16), (2, 2, 64), (2, 3, 112), (4, 1, 256), (2, 1, 1200)]
)
@pytest.mark.parametrize("protocol", Protocol, ids=lambda protocol: protocol.name)
def test_every_worker_gets_the_sum_of_all_lanes_in_every_round(
    brief: None, lanes: int, workers: int, values: int, protocol: Protocol
) -> None:
    memory: Any = EmulatedMemory(lanes * workers)
    us, speed = GpuExchange(memory, lanes).measure(protocol, values, 0)  # it raises where a sum is another
    assert us > 0
    assert speed == 0


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("protocol", Protocol, ids=lambda protocol: protocol.name)
def test_memory_streams_until_the_last_worker_has_ended(brief: None, protocol: Protocol, in_flight: int) -> None:
    memory: Any = EmulatedMemory(4)
    us, speed = GpuExchange(memory, 2).measure(protocol, 16, in_flight)
    assert us > 0
    assert speed > 0


@pytest.mark.parametrize("protocol", Protocol, ids=lambda protocol: protocol.name)
def test_a_lane_that_never_comes_is_an_error_and_not_a_hang(
    brief: None, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_gpu, "DEADLINE_S", 0.05)
    memory: Any = EmulatedMemory(4)
    exchange = GpuExchange(memory, 2)
    run = memory.context.launch
    monkeypatch.setattr(memory.context, "launch", lambda kernel, blocks, *rest: run(kernel, blocks // 2, *rest))
    with pytest.raises(TargetError, match="waited too long"):
        exchange.measure(protocol, 64, 2)


@pytest.mark.parametrize("protocol", Protocol, ids=lambda protocol: protocol.name)
def test_one_wrong_bit_is_found(protocol: Protocol) -> None:
    lanes, workers, values, rounds = 4, 2, 64, 37
    each = [exchange_gpu.sums(protocol, values, round_, lanes) for round_ in range(1, rounds + 1)]
    readers = lanes if protocol == Protocol.OWN_ROWS else lanes * workers
    bits = readers * sum(int(one.view(np.uint32).sum(dtype=np.uint64)) for one in each)
    received = np.broadcast_to(each[-1], (lanes, workers, values)).copy()
    exchange_gpu.check(protocol, received, bits, rounds)
    exchange_gpu.check(protocol, received, bits % 2**32, rounds)
    with pytest.raises(TargetError, match="other sums"):  # in a round before the last
        exchange_gpu.check(protocol, received, bits + 1, rounds)
    received.view(np.uint32)[3, 1, 63] ^= 1
    with pytest.raises(TargetError, match="other sums"):
        exchange_gpu.check(protocol, received, bits, rounds)


def test_partials_differ_by_row_round_and_lane_and_their_order_shows() -> None:
    first, second = exchange_gpu.partials(256, 1, 8), exchange_gpu.partials(256, 2, 8)
    assert len(np.unique(np.concatenate([first, second]))) == 2 * 8 * 256
    backwards = first[::-1].copy()
    total = backwards[0]
    for one in backwards[1:]:
        total = total + one
    assert (total != exchange_gpu.sums(Protocol.OWN_ROWS, 256, 1, 8)).any()


@pytest.mark.parametrize("lanes", LANES)
def test_the_kernel_compiles_for_the_gpu_without_spills(lanes: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    resources = jit.compile_kernel(exchange_gpu.source(lanes), "sm_90a").resources
    assert resources.spill_store_bytes == 0
    assert resources.registers * THREADS <= 65536  # of one multiprocessor


def test_all_sizes_fit_into_shared_memory_and_tags() -> None:
    assert exchange_gpu.exchange_shared_bytes(VALUES[-1], max(IN_FLIGHT)) <= 227 << 10
    assert exchange_gpu.WARM_UP + exchange_gpu.ROUNDS < 1 << 16  # the tags of a hand-off


@pytest.mark.gpu
@pytest.mark.skipif(find_gpu() is None, reason="needs an NVIDIA GPU that the kernel runs on")
def test_exchanges_on_a_gpu() -> None:
    from monolane.bench.ceiling.read_gpu import GpuMemory

    device = find_gpu()
    assert device is not None
    memory = GpuMemory(device)
    found = exchange_gpu.exchanges(memory)  # it raises where a sum is not that of all lanes
    memory.close()
    assert len(found) == len(LANES) * len(VALUES) * len(IN_FLIGHT)
    assert all(exchange.own_us > 0 and exchange.us > 0 for exchange in found)
    assert all((exchange.bytes_per_s > 0) == (exchange.streaming_bytes > 0) for exchange in found)
