"""The CUDA target: one launch per request. The host reads tokens from pinned memory while the kernel runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError
from monolane.lanes.memory import SharedMemory
from monolane.program.plan import Plan
from monolane.program.sample import Sampling
from monolane.target import structs
from monolane.target.base import Finish, Request, Token
from monolane.target.cuda.driver import Kernel
from monolane.target.cuda.launch import Outcome, WaitReason
from monolane.target.cuda.launcher import PLACES, Launcher
from monolane.target.cuda.layers import numbered_stages
from monolane.target.cuda.stamps import Stamps
from monolane.target.lane_processes import LaneProcesses

# The kernel reports a stuck worker after DEADLINE_S; the engine's watchdog gives the device up after STALL_S.
STALL_S = 0.8
SILENT_DEADLINES = 10  # without progress, after which the host gives up a kernel that does not end
POLL_S = 20e-6  # between two reads of the pinned memory: far below the time of a token
WATCH_S = 0.05  # between two looks at the processes of other lanes
REPORTS_S = 0.15  # for other lanes to say where they got stuck
# Of settle(): what it may take, how often it tries each place, and how many tokens it makes there each time.
SETTLING_NS, SETTLING_ROUNDS, FEWEST_TOKENS, MOST_TOKENS = 250e6, 2, 5, 25
DEATH_S = 0.3  # for a process that has disturbed this one to have ended
WAITED_FOR = {
    WaitReason.WAIT_COPY: "a copy of weights",
    WaitReason.WAIT_ACTIVATIONS: "activations",
    WaitReason.WAIT_BARRIER: "the barrier",
    WaitReason.WAIT_TOKEN: "the chosen token",
    WaitReason.WAIT_LANES: "other lanes",
}


class CudaTarget:
    """A model on a GPU. ``traced`` compiles a kernel with time stamps. ``others``: where lanes are apart, the processes
    of all but the first; then ``launcher`` has the first."""

    stall_s = STALL_S

    def __init__(
        self,
        launcher: Launcher,
        plan: Plan,
        traced: Callable[[], bytes],
        others: LaneProcesses | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self.launcher = launcher
        self.others = others
        self.program = plan.program
        self.lane_workers = plan.workers
        self._traced = traced
        lanes = self.program.lanes
        of_lanes = f"{lanes} lanes {'apart, ' if others else 'of '}" if lanes > 1 else ""
        self.name = (
            f"cuda ({launcher.context.device.name}, {of_lanes}{plan.workers} workers{' each' if others else ''})"
        )
        self.context = launcher.model.context
        self.caches = launcher.caches
        self.memory_bytes = memory_bytes
        self.bytes_per_token = plan.bytes_per_token * lanes
        self.silent_s = SILENT_DEADLINES * launcher.launch.deadline_ns / 1e9
        self._number = 0  # of the last request
        self._lock = threading.Lock()
        self._broken = False

    def run(self, request: Request) -> CudaRun:
        return CudaRun(self, request)

    def settle(self) -> None:
        """Choose where the memory of hand-offs lies. All workers poll the same words at once, so a token takes up to 4%
        longer where these meet in L2, and whether they do depends on the physical memory that the process has got. So
        a few tokens are made with each place, and the fastest is kept. Where lanes are apart, their memory stays where
        all of them have it."""
        if self.others or self.context <= FEWEST_TOKENS:
            return
        try:
            affordable = int(SETTLING_NS / (SETTLING_ROUNDS * PLACES * self._token_ns(0, FEWEST_TOKENS)))
            if affordable < FEWEST_TOKENS:  # reading the weights takes most of a token's time
                return
            tokens = min(affordable, MOST_TOKENS, self.context - 1)
            rounds = [[self._token_ns(place, tokens) for place in range(PLACES)] for _ in range(SETTLING_ROUNDS)]
        except TargetError:  # a request will say what is wrong
            self.launcher.place_handoffs(0)
            return
        self.launcher.place_handoffs(int(np.argmin(np.min(rounds, 0))))

    def _token_ns(self, place: int, tokens: int) -> float:
        """The time of a token with the memory of hand-offs at a place: the median of a few."""
        self.launcher.place_handoffs(place)
        run = self.run(Request([0], 0, tokens, frozenset(), Sampling()))
        return float(np.median(np.diff([token.time_ns for batch in run for token in batch])))

    def copy(self, source: int, destination: int, tokens: int) -> None:
        if self.others:
            self.others.copy(source, destination, tokens)
        self.launcher.copy(source, destination, tokens)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = np.empty((len(tokens), self.program.vocab), np.float32)
        context = self.launcher.context
        context.enter()
        address = context.allocate(logits.nbytes)
        theirs = SharedMemory.of(logits.nbytes) if self.others else None  # where other lanes leave their share
        try:
            for _ in CudaRun(self, Request(tokens, 0, 0, frozenset(), Sampling()), address, theirs):
                pass
            context.download(address, logits)
            if self.others and theirs:
                self.others.settle()
                of_others = theirs.array.view(np.float32).reshape(logits.shape)
                logits[:, self.program.head.matrix.rows :] = of_others[:, self.program.head.matrix.rows :]
        finally:
            context.free(address)
            if theirs:
                theirs.close_file()
        return logits

    def trace(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """Run a request with time stamps, in ns: when each worker came to each stage, had its input, ended its share.
        [pass][worker][stage][3], from decode pass ``first`` on. Where lanes are apart, the workers of the first."""
        return self._trace(request, first, passes)[0]

    def lane_waits(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """Run a request with a clock, in ns: how long each worker waited for other lanes in each stage.
        [pass][lane][worker of the lane][stage], from decode pass ``first`` on."""
        waits = self._trace(request, first, passes)[1]
        return waits.reshape(passes, self.program.lanes, self.lane_workers, -1)

    def _trace(self, request: Request, first: int, passes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The stamps, and the waits of the workers of all lanes."""
        numbered = numbered_stages(self.program)
        cubin, stages = self._traced(), len(numbered)
        own = Stamps(self.launcher, cubin, stages, first, passes)
        others = [SharedMemory.of(own.waits.nbytes) for _ in self.others.pids] if self.others else []
        try:
            if self.others:
                self.others.stamp(cubin, stages, first, passes, others)
            for _ in CudaRun(self, request, kernel=own.kernel):
                pass
            own.read()
            if self.others:
                self.others.settle()
        finally:
            own.close()
            for memory in others:
                memory.close_file()
        theirs = [memory.array.view(np.int64).reshape(own.waits.shape) for memory in others]
        begun = [number for number, stage in enumerate(numbered) if stage]
        return own.trace[:, :, begun], np.concatenate([own.waits, *theirs], 1)[:, :, begun]

    def close(self) -> None:
        """Free the memory. A kernel that does not end keeps its own: freeing it would wait for that kernel."""
        with self._lock:
            ended = not self._broken and self._end_kernel()
            self._broken = True
            if self.others:
                self.others.close()
            if ended:
                self.launcher.context.close()

    def _end_kernel(self) -> bool:
        """Tell the kernel to end; whether it has ended in time. One that has failed has ended, too."""
        self.launcher.abort()
        end_s = time.monotonic() + self.silent_s
        with suppress(TargetError):
            while self.launcher.running():
                if time.monotonic() > end_s:
                    return False
                time.sleep(POLL_S)
        return True

    # --- for CudaRun ---

    def start(
        self, request: Request, all_logits: int | None, theirs: SharedMemory | None, kernel: Kernel | None
    ) -> None:
        """Launch the kernel for a request, on all lanes."""
        with self._lock:
            if self._broken:
                raise TargetError("This target is closed, or an earlier request got stuck.", "Load the model again.")
            if self.others:
                if self.launcher.running():
                    raise TargetError("A request is still running.", "Wait for it, or abort it.")
                self._number += 1
                self.others.start(request, all_logits is not None, self._number, theirs)
            self.launcher.start(request, self._number, all_logits, kernel)

    def give_up(self) -> None:
        """Stop waiting for a kernel that does not end, also in close(). If it is only slow, the abort flag ends it."""
        self._broken = True
        self.launcher.abort()


class CudaRun:
    """A request on the GPU. ``all_logits``: the address where the kernel stores the logits after every token, and
    ``theirs`` the memory where other lanes leave their share of them."""

    def __init__(
        self,
        target: CudaTarget,
        request: Request,
        all_logits: int | None = None,
        theirs: SharedMemory | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self._target = target
        self._logprobs = request.logprobs is not None
        self.finish: Finish | None = None
        target.start(request, all_logits, theirs, kernel)
        self._outcome: Outcome = target.launcher.outcome
        self._seen = 0

    def __iter__(self) -> Iterator[list[Token]]:
        launcher = self._target.launcher
        steps, since = self._outcome.steps, time.monotonic()
        watched = since
        while self.finish is None:
            running = self._running()  # read first: once it is False, the values below are final
            made, status, now = self._outcome.made, self._outcome.status, time.monotonic()
            if (made, self._outcome.steps) != (self._seen, steps):
                steps, since = self._outcome.steps, now
            if made > self._seen:
                tokens = [structs.token_of(entry, self._logprobs) for entry in launcher.entries(self._seen, made)]
                self._seen = made
                yield tokens
            elif not running:
                self.finish = self._finish(status)
            elif now - since > self._target.silent_s:
                self._target.give_up()
                raise TargetError(
                    f"The GPU has shown no sign of life for {self._target.silent_s:g} s, and its kernel does not end.",
                    "Start the program again; if it happens again, report it as a bug.",
                )
            else:
                time.sleep(POLL_S)
            if now - watched > WATCH_S:
                watched = now
                self._require_lanes()

    @property
    def start_ns(self) -> int:
        return self._outcome.start_ns

    @property
    def steps(self) -> int:
        return self._outcome.steps

    def abort(self) -> None:
        if self.finish is None:
            self._target.launcher.abort()

    def _running(self) -> bool:
        try:
            return self._target.launcher.running()
        except TargetError:  # a process that dies may take what runs on the same GPU with it
            end_s = time.monotonic() + DEATH_S
            while time.monotonic() < end_s:
                self._require_lanes()
                time.sleep(WATCH_S)
            raise

    def _require_lanes(self) -> None:
        """TargetError where the process of another lane has ended. The kernel of this one ends at its deadline; that is
        waited for, because a process that ends while its kernel runs may disturb others under MPS."""
        others, launcher = self._target.others, self._target.launcher
        if not others or (problem := others.problem()) is None:
            return
        self._target.give_up()
        end_s = time.monotonic() + launcher.launch.deadline_ns / 1e9 + WATCH_S
        with suppress(TargetError):
            while launcher.running() and time.monotonic() < end_s:
                time.sleep(POLL_S)
        raise TargetError(f"{problem}.", "Load the model again.")

    def _finish(self, status: int) -> Finish:
        if status == structs.Status.NOT_A_NUMBER:
            raise TargetError("The model produced logits that are not numbers.", "Its weights are probably damaged.")
        if status in structs.FINISHES:
            return structs.FINISHES[structs.Status(status)]
        self._require_lanes()
        reports = [self._outcome.report()] if status == structs.Status.STUCK else []
        reports += self._target.others.reports(REPORTS_S) if self._target.others else []
        if not reports:
            raise TargetError("The kernel ended, and no lane says why.", "Load the model again.")
        raise self._stuck(min(reports, key=lambda report: report["step"]))  # all others waited for that one

    def _stuck(self, report: dict[str, int]) -> TargetError:
        waited_for = WAITED_FOR[WaitReason(report["waited_for"])]
        stages = numbered_stages(self._target.program)
        stage = stages[min(report["stage"], len(stages) - 1)]
        assert stage is not None  # a layer does not wait at a stage that it skips
        lane, rank = divmod(report["worker"], self._target.lane_workers)
        of_lane = f" of lane {lane}" if self._target.program.lanes > 1 else ""
        return TargetError(
            f"A worker got stuck: worker {rank}{of_lane} waited too long for {waited_for} "
            f"at stage {stage.name!r} of layer {report['layer']}.",
            "Ask again; if it happens again, load the model again.",
        )
