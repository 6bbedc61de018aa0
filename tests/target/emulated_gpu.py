"""A GPU made of threads: the driver's calls that the CUDA target makes, so that its host side runs without a GPU."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from emulated import SHARED_LIMIT, build_emulated
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.progress import Silent
from monolane.model.weights import Weights
from monolane.program.tape_store import load_tape
from monolane.target.cuda.opening import cuda_plan

if TYPE_CHECKING:
    from monolane.target.cuda.runtime import CudaTarget

WORKERS = 3
PATIENCE_S = 120.0  # of waits: a thread may not get a core for long


class EmulatedContext:
    """The twin of ``driver.Context``. A launch runs in a thread of its own, as a GPU runs beside the host."""

    def __init__(self) -> None:
        self.device = SimpleNamespace(name="emulation", shared_limit=SHARED_LIMIT, processors=WORKERS)
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        pass

    def free_memory(self) -> int:
        return 64 << 20

    def allocate(self, size: int) -> int:
        buffer = np.zeros(size + 512, np.uint8)
        address = int(-(-buffer.ctypes.data // 256) * 256)
        self._memory[address] = buffer
        return address

    host_memory = allocate

    def upload(self, data: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(data)
        address = self.allocate(data.nbytes)
        self.write(address, data)
        return address

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, address: int, into: NDArray[np.generic]) -> None:
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def copy_rows(self, source: int, target: int, pitch: int, width: int, rows: int) -> None:
        for row in range(rows):
            ctypes.memmove(target + row * pitch, source + row * pitch, width)

    def clear(self, address: int, size: int) -> None:
        ctypes.memset(address, 0, size)

    def free(self, address: int) -> None:
        del self._memory[address]

    def launch(self, kernel: Any, blocks: int, threads: int, shared_bytes: int, given: ctypes.Structure) -> None:
        def run() -> None:
            kernel(ctypes.byref(given), 0, ctypes.c_uint64(1))  # no delays

        assert not self.running()
        self._thread = threading.Thread(target=run, name="emulated launch")
        self._thread.start()

    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        self._memory.clear()


def open_emulated_gpu(
    config: ModelConfig, weights: Weights, context: int, stall: tuple[int, int, int] | None = None
) -> CudaTarget:
    """The CUDA target on threads. ``stall``: (worker, stage, seconds)."""
    pytest.importorskip("cuda.bindings", reason="the CUDA target's host side needs the cuda-bindings package")
    from monolane.target.cuda.runtime import CudaTarget

    plan = cuda_plan(config, WORKERS)
    tape = load_tape(plan, weights, lambda size: np.zeros(size, np.uint8), Silent())
    kernel = ctypes.CDLL(str(build_emulated(plan, stall))).monolane_emulate

    def traced() -> Any:
        raise NotImplementedError("nobody traces the emulation")

    return CudaTarget(EmulatedContext(), kernel, tape, context, traced, PATIENCE_S)  # type: ignore[arg-type]
