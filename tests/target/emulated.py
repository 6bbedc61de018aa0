"""The CUDA kernel in the emulation, behind the interface of a target: for machines without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.sample import Sampling
from monolane.progress import Silent
from monolane.target import emulation, structs
from monolane.target.base import Request, Token
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import vector_level
from monolane.target.cuda.generate import generate
from monolane.target.cuda.launch import Launch, Outcome, set_request
from monolane.target.cuda.launch_model import LaunchModel, place_tapes
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.projections import least_slot_bytes
from poison import poison

SHARED_LIMIT = 232448
FLAGS = ("-Wno-unknown-pragmas", "-O1")  # -O1: half the time to compile, and it is compiled more than it is run


class HostArena:
    """Our own memory in the place of a device's; scratch is poisoned, as a device's would be after other work."""

    def __init__(self) -> None:
        self.memory: list[NDArray[np.uint8]] = []

    def allocate(self, size: int) -> int:
        buffer = poison(size + 512)
        self.memory.append(buffer)
        return -(-buffer.ctypes.data // 256) * 256

    def upload(self, data: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(data)
        address = self.allocate(data.nbytes)
        self.write(address, data)
        return address

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)


def build_emulated(
    plan: Plan,
    stall: tuple[int, int, int] | None = None,
    headers: tuple[Path, ...] = emulation.HEADERS,
    flags: tuple[str, ...] = (),
    traced: bool = False,
    shared_limit: int = SHARED_LIMIT,
    apart: bool = False,
) -> Path:
    """The kernel's sources as a library for this CPU."""
    compiler = find_compiler()
    assert compiler is not None
    source = generate(plan, shared_limit, emulated=True, traced=traced, apart=apart, stall=stall)
    return build(source, compiler, vector_level(), headers, (*FLAGS, *flags))


class EmulatedTarget:
    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        workers: int,
        context: int = 256,
        delay_permille: int = 0,
        seed: int = 1,
        stall: tuple[int, int, int] | None = None,
        deadline_s: float = 120.0,
        library: Path | None = None,
        shared_limit: int = SHARED_LIMIT,
        lanes: int = 1,
    ) -> None:
        plan = cuda_plan(config, workers, lanes, weights.format, least_slot_bytes(shared_limit))
        self._arena = HostArena()
        left, placed = place_tapes(plan, weights, config, self._arena, Silent())
        library = library or build_emulated(plan, stall, shared_limit=shared_limit)
        self._call = ctypes.CDLL(str(library)).monolane_emulate
        model = LaunchModel.of(plan, left, left[0].table, context, placed)
        self.launch = model.place(self._arena, self._arena.allocate(model.handoff_bytes), deadline_s)
        self._cleared, self._context, self._delays = model.cleared_bytes, context, (delay_permille, seed)
        self.vocab = config.vocab

    def run(self, request: Request) -> tuple[list[Token], Outcome]:
        """All tokens of a request, and how it ended."""
        return self._run(request, None)

    def logits(self, tokens: Sequence[int], cached: int = 0) -> NDArray[np.float32]:
        """Those after every token but the first ``cached``, whose keys and values are in the cache."""
        logits = np.full((len(tokens) - cached, self.vocab), np.nan, np.float32)
        _, outcome = self._run(Request(tokens, cached, 0, frozenset(), Sampling()), logits.ctypes.data)
        assert outcome.status == structs.Status.LENGTH_REACHED
        return logits

    def _run(self, request: Request, logits: int | None) -> tuple[list[Token], Outcome]:
        ctypes.memset(self.launch.activation_words, 0, self._cleared)
        entries, outcome, abort = (structs.Entry * self._context)(), Outcome(), ctypes.c_uint32(0)
        launch = Launch.from_buffer_copy(self.launch)
        set_request(launch, request, self.vocab, self._arena, logits)
        launch.entries, launch.outcome = ctypes.addressof(entries), ctypes.addressof(outcome)
        launch.abort = ctypes.addressof(abort)
        self._call(ctypes.byref(launch), self._delays[0], ctypes.c_uint64(self._delays[1]))
        tokens = [structs.token_of(entries[i], request.logprobs is not None) for i in range(outcome.made)]
        return tokens, outcome
