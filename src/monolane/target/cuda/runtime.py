"""The CUDA target: one launch per request. The host reads tokens from pinned memory while the kernel runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Finish, Request, Token
from monolane.target.caches import resident_caches
from monolane.target.cuda.constants import PAGE_TOKENS, THREADS
from monolane.target.cuda.driver import Context, Kernel
from monolane.target.cuda.launch import (
    Launch,
    Outcome,
    WaitReason,
    cache_rows,
    cleared_bytes,
    entry_bytes,
    model_launch,
    scratch_sizes,
    set_request,
)
from monolane.target.cuda.request_memory import RequestMemory

# The kernel reports a stuck worker after DEADLINE_S; the engine's watchdog gives the device up after STALL_S.
DEADLINE_S, STALL_S = 0.5, 0.8
SILENT_DEADLINES = 10  # without progress, after which the host gives up a kernel that does not end
POLL_S = 20e-6  # between two reads of the pinned memory: far below the time of a token
WAITED_FOR = {
    WaitReason.WAIT_COPY: "a copy of weights",
    WaitReason.WAIT_ACTIVATIONS: "activations",
    WaitReason.WAIT_BARRIER: "the barrier",
    WaitReason.WAIT_TOKEN: "the chosen token",
    WaitReason.WAIT_LANES: "other lanes",
}


class CudaTarget:
    """A kernel with the tapes of its lanes and KV caches in the memory of a GPU. ``traced`` makes a kernel with time
    stamps."""

    stall_s = STALL_S

    def __init__(
        self,
        context: Context,
        kernel: Kernel,
        tapes: Sequence[Tape],
        tokens: int,
        traced: Callable[[], Kernel],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._context = context
        self._kernel = kernel
        self._traced = traced
        plan, lanes = tapes[0].plan, len(tapes)
        of_lanes = f"{lanes} lanes of " if lanes > 1 else ""
        self.name = f"cuda ({context.device.name}, {of_lanes}{plan.workers} workers)"
        self.context = tokens
        self.bytes_per_token = plan.bytes_per_token * lanes
        self.program = plan.program
        self._plan = plan
        self.lane_workers = plan.workers
        self._workers = plan.workers * lanes
        self._launch = model_launch(tapes, tokens, context, deadline_s)
        self._cleared = cleared_bytes(plan, tokens)
        self.silent_s = SILENT_DEADLINES * deadline_s
        self._request = RequestMemory(context)
        self._caches = self._make_caches()
        self.caches = len(self._caches)
        self._entries = context.host_memory(entry_bytes(tokens))
        self._outcome = context.host_memory(ctypes.sizeof(Outcome))
        self._abort = context.host_memory(4)
        self._launch.entries, self._launch.outcome, self._launch.abort = self._entries, self._outcome, self._abort
        self._lock = threading.Lock()
        self._broken = False

    def _make_caches(self) -> list[tuple[int, int]]:
        """Addresses of the keys and values of all KV caches: the first one, and as many more as memory allows."""
        sizes = scratch_sizes(self._plan, self.context)
        keys, values = sizes["keys"], sizes["values"]
        more = resident_caches(keys + values, self._context.free_memory()) - 1
        made = [(self._context.allocate(keys), self._context.allocate(values)) for _ in range(more)]
        return [(self._launch.keys, self._launch.values), *made]

    def copy(self, source: int, destination: int, tokens: int) -> None:
        """Whole pages are copied; positions of the last page beyond ``tokens`` are never read."""
        sizes = scratch_sizes(self._plan, self.context)
        rows = self.program.lanes * cache_rows(self.program)
        self._context.enter()
        for which, name in enumerate(("keys", "values")):
            pitch = sizes[name] // rows
            width = pitch // -(-self.context // PAGE_TOKENS) * -(-tokens // PAGE_TOKENS)
            self._context.copy_rows(self._caches[source][which], self._caches[destination][which], pitch, width, rows)

    def run(self, request: Request) -> CudaRun:
        return CudaRun(self, request, None, self._kernel)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = np.empty((len(tokens), self.program.vocab), np.float32)
        self._context.enter()
        address = self._context.allocate(logits.nbytes)
        try:
            for _ in CudaRun(self, Request(tokens, 0, 0, frozenset(), Sampling()), address, self._kernel):
                pass
            self._context.download(address, logits)
        finally:
            self._context.free(address)
        return logits

    def trace(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """Run a request with time stamps, in ns: when each worker came to each stage, had its input, ended its share.
        [pass][worker][stage][3], from decode pass ``first`` on."""
        stamps = np.zeros((passes, self._workers, len(self.program.begun), 3), np.int64)
        self._context.enter()
        address = self._context.allocate(stamps.nbytes)
        self._context.clear(address, stamps.nbytes)  # a request may end before the last of these passes
        self._launch.trace, self._launch.trace_from, self._launch.trace_passes = address, first, passes
        try:
            for _ in CudaRun(self, request, None, self._traced()):
                pass
            self._context.download(address, stamps)
        finally:
            self._launch.trace = None
            self._context.free(address)
        return stamps

    def close(self) -> None:
        with self._lock:
            if not self._broken:
                self._broken = True
                ctypes.c_uint32.from_address(self._abort).value = 1
                while self._context.running():
                    time.sleep(POLL_S)
                self._context.close()

    # --- for CudaRun ---

    def start(self, request: Request, all_logits: int | None, kernel: Kernel) -> Outcome:
        """Launch the kernel for a request. Returns the struct that the kernel updates."""
        with self._lock:
            if self._broken:
                raise TargetError("This target is closed, or an earlier request got stuck.", "Load the model again.")
            self._context.enter()
            if self._context.running():
                raise TargetError("A request is still running.", "Wait for it, or abort it.")
            self._request.begin()
            set_request(self._launch, request, self.program.vocab, self._request, all_logits)
            self._context.clear(self._launch.activation_words, self._cleared)
            ctypes.memset(self._outcome, 0, ctypes.sizeof(Outcome))
            ctypes.c_uint32.from_address(self._abort).value = 0
            shared = self._context.device.shared_limit
            argument = Launch.from_buffer_copy(self._launch)
            argument.keys, argument.values = self._caches[request.cache]
            self._context.launch(kernel, self._workers, THREADS, shared, argument)
            return Outcome.from_address(self._outcome)

    def entries(self, start: int, stop: int) -> Sequence[structs.Entry]:
        base = self._entries + start * ctypes.sizeof(structs.Entry)
        return (structs.Entry * (stop - start)).from_address(base)  # type: ignore[return-value]

    def abort(self) -> None:
        ctypes.c_uint32.from_address(self._abort).value = 1

    def running(self) -> bool:
        self._context.enter()
        return self._context.running()

    def give_up(self) -> None:
        """Stop waiting for a kernel that does not end, also in close(). If it is only slow, the abort flag ends it."""
        self._broken = True
        self.abort()


class CudaRun:
    """A request on the GPU."""

    def __init__(self, target: CudaTarget, request: Request, all_logits: int | None, kernel: Kernel) -> None:
        self._target = target
        self._logprobs = request.logprobs is not None
        self.finish: Finish | None = None
        self._outcome = target.start(request, all_logits, kernel)
        self._seen = 0

    def __iter__(self) -> Iterator[list[Token]]:
        steps, since = self._outcome.steps, time.monotonic()
        while self.finish is None:
            running = self._target.running()  # read first: once it is False, the values below are final
            made, status = self._outcome.made, self._outcome.status
            if (made, self._outcome.steps) != (self._seen, steps):
                steps, since = self._outcome.steps, time.monotonic()
            if made > self._seen:
                entries = self._target.entries(self._seen, made)
                tokens = [structs.token_of(entry, self._logprobs) for entry in entries]
                self._seen = made
                yield tokens
            elif not running:
                self.finish = self._finish(status)
            elif time.monotonic() - since > self._target.silent_s:
                self._target.give_up()
                raise TargetError(
                    f"The GPU has shown no sign of life for {self._target.silent_s:g} s, and its kernel does not end.",
                    "Start the program again; if it happens again, report it as a bug.",
                )
            else:
                time.sleep(POLL_S)

    @property
    def start_ns(self) -> int:
        return self._outcome.start_ns

    @property
    def steps(self) -> int:
        return self._outcome.steps

    def abort(self) -> None:
        if self.finish is None:
            self._target.abort()

    def _finish(self, status: int) -> Finish:
        if status == structs.Status.NOT_A_NUMBER:
            raise TargetError("The model produced logits that are not numbers.", "Its weights are probably damaged.")
        if status in structs.FINISHES:
            return structs.FINISHES[structs.Status(status)]
        outcome = self._outcome
        waited_for = WAITED_FOR[WaitReason(outcome.waited_for)]
        begun = self._target.program.begun
        name = begun[min(outcome.stage, len(begun) - 1)].name
        lane, rank = divmod(outcome.worker, self._target.lane_workers)
        of_lane = f" of lane {lane}" if self._target.program.lanes > 1 else ""
        raise TargetError(
            f"A worker got stuck: worker {rank}{of_lane} waited too long for {waited_for} "
            f"at stage {name!r} of layer {outcome.layer}.",
            "Ask again; if it happens again, load the model again.",
        )
