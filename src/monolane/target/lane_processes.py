"""Lanes apart: every lane but the first in a process of its own, which follows the first.

The first process packs the tapes of all lanes in shared memory and passes them on as file descriptors, with what else
the process of a lane needs (``LaneSetup``). That process (``lane_main.py``) runs every request that the first one runs.
While a request runs, no host comes between the lanes. It is the same for all targets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import TargetError
from monolane.lanes.child import Child, module
from monolane.lanes.memory import SharedMemory
from monolane.target.base import Request

MAIN = module("monolane.target.lane_main")
EXIT_S = 3.0  # for a process to exit by itself; then it is killed
CAUSE_S = 2.0  # to learn how a process ended
ANSWER_S = 60.0  # the longest that a process may take to answer, on a machine that is very busy
CHECK_S = 0.3  # between two checks whether a process that does not answer was stopped

Answer = tuple[dict[str, Any], list[int]]  # a message, and the descriptors that came with it


@dataclasses.dataclass(frozen=True)
class LaneSetup:
    """What the process of a lane gets when it starts: plain values, and arrays in shared memory."""

    target: str  # "cpu" or "cuda"
    lane: int
    values: dict[str, Any]
    pieces: Mapping[str, SharedMemory]


class LaneProcesses:
    """The processes of lanes 1, 2, …: one for each setup."""

    def __init__(self, setups: Sequence[LaneSetup]) -> None:
        self._processes = [_LaneProcess(setup) for setup in setups]

    def ready(self) -> list[Answer]:
        """Return when all are ready: what each says of itself."""
        try:
            return [process.expect("ready") for process in self._processes]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self, request: Request, all_logits: bool, number: int = 0, logits: SharedMemory | None = None) -> None:
        """Make them run a request; return when all of them have begun. ``logits``: where those of ``all_logits`` go,
        if the first lane does not have them all."""
        values = dataclasses.asdict(request)
        values |= {"tokens": list(map(int, request.tokens)), "stop_tokens": sorted(request.stop_tokens)}
        message = {"run": values, "all_logits": all_logits, "number": number}
        message["sizes"] = {"logits": logits.size} if logits else {}
        self.ask(message, "started", [logits.file] if logits else [])
        for process in self._processes:
            process.is_running = True

    def stamp(self, kernel: bytes, stages: int, first: int, passes: int, waits: Sequence[SharedMemory]) -> None:
        """Make them run the next request with a kernel that measures how long it waits for other lanes, and leave that
        of each lane in its part of ``waits``: [pass][worker][stage], in ns, from decode pass ``first`` on."""
        code = SharedMemory.of(len(kernel))
        code.array[:] = np.frombuffer(kernel, np.uint8)
        self.settle()
        for process, memory in zip(self._processes, waits, strict=True):
            sizes = {"kernel": code.size, "waits": memory.size}
            process.send({"stamp": [stages, first, passes], "sizes": sizes}, [code.file, memory.file])
        for process in self._processes:
            process.expect("stamped")
        code.close_file()

    def copy(self, source: int, destination: int, tokens: int) -> None:
        """As ``Target.copy``."""
        self.ask({"copy": [source, destination, tokens]}, "copied")

    def settle(self) -> None:
        """Wait until the last request has ended on all lanes: none may begin another one while one still reads what was
        exchanged in the last one."""
        for process in self._processes:
            process.settle()

    def ask(self, message: dict[str, Any], answer: str, files: Sequence[int] = ()) -> None:
        """Send a message to all, and wait for their answers."""
        self.settle()
        for process in self._processes:
            process.send(message, files)
        for process in self._processes:
            process.expect(answer)

    def problem(self, lane: int | None = None) -> str | None:
        """What has become of the process of a lane, or of any; None where it is alive."""
        if lane is None:
            return next(filter(None, (process.problem(0.0) for process in self._processes)), None)
        return next((process.problem() for process in self._processes if process.lane == lane), None)

    def reports(self, wait_s: float) -> list[dict[str, int]]:
        """What those lanes say that found themselves stuck, within so many seconds. TargetError where a process does
        not even say that the request has ended."""
        end_s = time.monotonic() + wait_s
        return [report for process in self._processes if (report := process.report(end_s))]

    def close(self) -> None:
        for process in self._processes:
            process.close()


class _LaneProcess:
    """A process and the channel to it."""

    def __init__(self, setup: LaneSetup) -> None:
        self.lane = setup.lane
        self.is_running = False  # a request, of which it has not said that it has ended
        self._child = Child(MAIN)
        self._process, self._channel = self._child.process, self._child.channel
        sizes = {name: piece.size for name, piece in setup.pieces.items()}
        message = setup.values | {"target": setup.target, "lane": setup.lane, "sizes": sizes}
        self.send(message, [piece.file for piece in setup.pieces.values()])

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        with contextlib.suppress(ConnectionError):  # it is dead: whoever waits for its answer learns that
            self._channel.send(message, files)

    def expect(self, answer: str) -> Answer:
        """Wait for an answer; TargetError where the process has ended, or does not answer."""
        waited_s = 0.0
        while True:
            while not self._channel.has_message(CHECK_S):
                waited_s += CHECK_S
                if waited_s > ANSWER_S or is_stopped(self.pid):
                    raise TargetError(f"The process of lane {self.lane} does not answer.", "Load the model again.")
            received = self._channel.receive()
            said = received[0].get("is") if received else None
            if received is not None and said == answer:
                return received
            if said != "stuck":  # that was said while nobody listened any more
                problem = self.problem(CAUSE_S) or f"The process of lane {self.lane} gave a wrong answer"
                raise TargetError(f"{problem}.", "Load the model again.")

    def settle(self) -> None:
        if self.is_running:
            self.expect("ended")
            self.is_running = False

    def report(self, end_s: float) -> dict[str, int] | None:
        """Where the lane got stuck; None where it only ended with the others."""
        if not self.is_running:
            return None
        received = self._channel.receive() if self._channel.has_message(max(0.0, end_s - time.monotonic())) else None
        if received is None:
            problem = self.problem() or f"The process of lane {self.lane} does not answer"
            raise TargetError(f"{problem}.", "Load the model again.")
        self.is_running = received[0].get("is") != "ended"
        report: dict[str, int] | None = received[0].get("report")
        return report

    def problem(self, wait_s: float = 0.1) -> str | None:
        """How the process has ended; None where it has not."""
        end = self._child.end(wait_s)
        return f"The process of lane {self.lane} {end}" if end else None

    def close(self) -> None:
        self._channel.close()
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver holds it: waiting longer would not help
                self._process.wait(EXIT_S)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
