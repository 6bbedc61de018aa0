"""Lanes apart: every lane but the first in a process of its own.

The first process packs the tapes of all lanes in shared memory and passes them on as file descriptors, with the memory
in which lanes exchange. A lane's process (``lane_main.py``) loads the compiled kernel and follows: it runs every
request that the first one runs. While a request runs, no host comes between the lanes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import TargetError
from monolane.lanes.channel import Channel
from monolane.lanes.memory import SharedAllocator, SharedMemory
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cpu import native
from monolane.target.cpu.runtime import DEADLINE_S, CacheShape

PYTHON = (sys.executable, "-P")  # -P: nothing is imported from the folder that a user happens to be in
EXIT_S = 3.0  # for a process to exit by itself; then it is killed
CAUSE_S = 2.0  # to learn how a process ended
ANSWER_S = 60.0  # the longest that a process may take to answer, on a machine that is very busy
CHECK_S = 0.3  # between two checks whether a process that does not answer was stopped


class LaneProcesses:
    """The processes of lanes 1, 2, …, as ``OtherLanes`` of the target of lane 0."""

    def __init__(self) -> None:
        self._processes: list[_LaneProcess] = []
        self._is_running = False  # a request, of which they have not said that it has ended

    def open(
        self,
        library: native.Library,
        tapes: Sequence[Tape],
        memory: SharedAllocator,
        shared: SharedMemory,
        places: Sequence[native.Place],
        context: int,
        caches: int,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Start a process for every lane but the first; return when all are ready."""
        plan = tapes[0].plan
        cache = CacheShape.of(plan.program, context, 1)
        segments = memory.copy_of(np.frombuffer(bytes(structs.segment_table(plan)), np.uint8))
        table = memory.memory_of(tapes[0].table) if tapes[0].table is not None else None
        for lane, tape in enumerate(tapes):
            if lane == 0:
                continue
            parts = [memory.memory_of(part) for part in tape.workers]
            constants = memory.copy_of(tape.constants.values)
            pieces = [shared, segments, constants, *([table] if table else []), *parts]
            setup = {
                "library": str(library.path), "lane": lane, "threads": places[lane].threads, "context": context,
                "processors": list(places[lane].processors or ()), "cache": dataclasses.asdict(cache), "caches": caches,
                "sizes": [piece.size for piece in pieces], "has_table": table is not None, "deadline_s": deadline_s,
            }  # fmt: skip
            self._processes.append(_LaneProcess(lane, setup, [piece.file for piece in pieces]))
        try:
            for process in self._processes:
                process.expect("ready")
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self, request: Request, all_logits: bool) -> None:
        message = {"run": dataclasses.asdict(request) | {"tokens": list(map(int, request.tokens)),
                   "stop_tokens": sorted(request.stop_tokens)}, "all_logits": all_logits}  # fmt: skip
        self._ask(message, "started")
        self._is_running = True

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self._ask({"copy": [source, destination, tokens]}, "copied")

    def _ask(self, message: dict[str, Any], answer: str) -> None:
        if self._is_running:  # no lane may begin a request while another still reads what was exchanged in the last one
            for process in self._processes:
                process.expect("ended")
            self._is_running = False
        for process in self._processes:
            process.send(message)
        for process in self._processes:
            process.expect(answer)

    def problem(self, lane: int) -> str | None:
        return next((process.problem() for process in self._processes if process.lane == lane), None)

    def close(self) -> None:
        for process in self._processes:
            process.close()


class _LaneProcess:
    """A process and the channel to it."""

    def __init__(self, lane: int, setup: dict[str, Any], files: Sequence[int]) -> None:
        self.lane = lane
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "monolane.target.cpu.lane_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in the terminal is for the first process alone
            )
        self._channel = Channel(ours)
        self.send(setup, files)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        with contextlib.suppress(ConnectionError):  # it is dead: whoever waits for its answer learns that
            self._channel.send(message, files)

    def expect(self, answer: str) -> None:
        """Wait for an answer; TargetError where the process has ended, or does not answer."""
        waited_s = 0.0
        while not self._channel.has_message(CHECK_S):
            waited_s += CHECK_S
            if waited_s > ANSWER_S or is_stopped(self.pid):
                raise TargetError(f"The process of lane {self.lane} does not answer.", "Load the model again.")
        received = self._channel.receive()
        if received is None or received[0] != {"is": answer}:
            problem = self.problem(CAUSE_S) or f"The process of lane {self.lane} gave a wrong answer"
            raise TargetError(f"{problem}.", "Load the model again.")

    def problem(self, wait_s: float = 0.1) -> str | None:
        """How the process has ended; None where it has not."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"The process of lane {self.lane} {how}"

    def close(self) -> None:
        self._channel.close()
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
