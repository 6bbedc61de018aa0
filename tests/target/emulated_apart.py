"""Lanes apart on an emulated GPU: the target's own host side and its own processes, with the driver's calls emulated.

Run as a program, it is the process of a lane (``monolane.target.lane_main``) on such a GPU.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from emulated import FLAGS, SHARED_LIMIT
from emulated_gpu import EmulatedContext

from monolane.lanes.memory import SharedMemory
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.progress import Silent
from monolane.target import emulation, lane_main, lane_processes
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import vector_level
from monolane.target.cuda import driver, follower, opening, peer_memory
from monolane.target.cuda.cards import TRIED
from monolane.target.cuda.jit import Compiled
from monolane.target.cuda.runtime import CudaTarget

MAIN = (sys.executable, __file__)
_shared: list[SharedMemory] = []  # kept mapped


class EmulatedLaneContext(EmulatedContext):
    """Its cubin is the path of a library."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device

    def load(self, cubin: bytes, _: int) -> Any:
        return ctypes.CDLL(cubin.decode()).monolane_emulate


def device(processors: int = 0) -> Any:
    return SimpleNamespace(
        name="emulation", number=0, processors=processors, shared_limit=SHARED_LIMIT, capability=TRIED, architecture="x"
    )


def share(_: Any, size: int) -> peer_memory.PeerMemory:
    """Memory that processes share, in the place of a GPU's."""
    memory = SharedMemory.of(size)
    _shared.append(memory)
    return peer_memory.PeerMemory(memory.address, size, memory.file)


def map_shared(_: Any, size: int, file: int | None, __: bytes) -> int:
    assert file is not None
    _shared.append(SharedMemory(file, size))
    return _shared[-1].address


def compiled(source: str, _: str) -> Compiled:
    compiler = find_compiler()
    assert compiler is not None
    path = build(source, compiler, vector_level(), emulation.HEADERS, FLAGS)
    return Compiled(str(path).encode(), "")


@contextmanager
def opened_apart(
    config: ModelConfig,
    weights: Weights,
    lanes: int,
    workers: int = 2,
    context: int = 128,
    stall: tuple[int, int, int] | None = None,
    deadline_s: float = 120.0,
) -> Iterator[CudaTarget]:
    """``workers`` thread blocks for each lane."""
    gpu = device(workers * lanes)
    patches = [
        mock.patch.object(opening, "generate", partial(opening.generate, emulated=True, stall=stall)),
        mock.patch.object(opening, "compile_kernel", compiled),
        mock.patch.object(opening, "lane_devices", lambda count: [gpu] * count),
        mock.patch.object(driver, "Context", EmulatedLaneContext),
        mock.patch.object(EmulatedLaneContext, "free_memory", return_value=16 << 30),
        mock.patch.object(opening, "resident_caches", return_value=2),
        mock.patch.object(peer_memory, "share", share),
        mock.patch.object(peer_memory, "map_shared", map_shared),
        mock.patch.object(follower, "lane_setups", partial(follower.lane_setups, deadline_s=deadline_s)),
        mock.patch.object(lane_processes, "MAIN", MAIN),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        target = opening.open_cuda_apart(config, weights, context, gpu, Silent(), lanes)
        target.launcher.launch.deadline_ns = int(deadline_s * 1e9)
        target.silent_s = 10 * deadline_s
        try:
            yield target
        finally:
            target.close()


if __name__ == "__main__":
    with (
        mock.patch.object(follower, "Context", EmulatedLaneContext),
        mock.patch.object(follower, "find_devices", return_value=[device()]),
        mock.patch.object(peer_memory, "share", share),
        mock.patch.object(peer_memory, "map_shared", map_shared),
    ):
        lane_main.main()
