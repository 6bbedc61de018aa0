"""An emulated GPU: the driver calls that the CUDA target makes, so that its host side runs without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from emulated import SHARED_LIMIT, build_emulated
from numpy.typing import NDArray

from emulated_context import EmulatedMemory
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.progress import Silent
from monolane.target.cuda import opening
from monolane.target.cuda.cards import TRIED
from monolane.target.cuda.jit import Compiled
from monolane.target.cuda.opening import cuda_plan

if TYPE_CHECKING:
    from monolane.target.cuda.runtime import CudaTarget

WORKERS = 3
PATIENCE_S = 120.0  # of waits: a thread may not get a core for long


class EmulatedContext(EmulatedMemory):
    """For the monokernel, which comes as a function of a library."""

    def __init__(self, processors: int = WORKERS) -> None:
        super().__init__()
        self.device = SimpleNamespace(
            name="emulation",
            architecture="emulation",
            capability=TRIED,
            shared_limit=SHARED_LIMIT,
            processors=processors,
        )

    def free_memory(self) -> int:
        return super().free_memory() + opening.SPARE_BYTES

    def upload(self, data: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(data)
        address = self.allocate(data.nbytes)
        self.write(address, data)
        return address

    def copy_rows(self, source: int, target: int, pitch: int, width: int, rows: int) -> None:
        for row in range(rows):
            ctypes.memmove(target + row * pitch, source + row * pitch, width)

    def free(self, address: int) -> None:
        del self._memory[address]

    def launch(
        self,
        kernel: Any,
        blocks: int,
        threads: int,
        shared_bytes: int,
        given: ctypes.Structure,
        cooperative: bool = True,
    ) -> None:
        self.start(lambda: kernel(ctypes.byref(given), 0, ctypes.c_uint64(1)))  # no delays


def open_emulated_gpu(
    config: ModelConfig, weights: Weights, context: int, stall: tuple[int, int, int] | None = None, lanes: int = 1
) -> CudaTarget:
    """The CUDA target on threads. ``stall``: (worker, stage, seconds)."""
    pytest.importorskip("cuda.bindings", reason="the CUDA target's host side needs the cuda-bindings package")
    from monolane.target.cuda import driver
    from monolane.target.cuda.runtime import CudaTarget

    plan = cuda_plan(config, WORKERS * lanes, lanes, weights.format)
    gpu: Any = EmulatedContext(WORKERS * lanes)
    gpu.load = lambda *_: ctypes.CDLL(str(build_emulated(plan, stall))).monolane_emulate
    with (
        mock.patch.object(driver, "Context", return_value=gpu),
        mock.patch.object(opening, "compile_kernel", return_value=Compiled(b"", "")),
        mock.patch.object(CudaTarget, "settle"),  # on threads all places take as long
    ):
        target = opening.open_cuda(config, weights, context, gpu.device, Silent(), lanes)
    target.launcher.launch.deadline_ns = int(PATIENCE_S * 1e9)
    return target
