"""Keeps an engine running: starts its process, and another one when that has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from monolane.engine import messages
from monolane.engine.engine_process import EngineProcess
from monolane.errors import EngineFailedError

FIRST_PAUSE_S = 0.1  # before the first restart; doubled for each restart that follows soon
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 10.0  # a process that was ready for longer was healthy: the next pause is the first one again


class Owner(Protocol):
    """The engine that the supervisor keeps running."""

    def on_message(self, message: messages.FromEngine) -> None:
        """A message from the engine process."""

    def on_end(self, problem: str) -> None:
        """The engine process, which had been ready, has ended by itself; another one is being started."""

    def on_failed_restart(self, problem: str) -> None:
        """The new process ended before it was ready; another one is being started."""


class Supervisor:
    """One engine process at a time, started by ``command``."""

    def __init__(self, command: Sequence[str], owner: Owner, stall_s: float) -> None:
        self._command = command
        self._owner = owner
        self._stall_s = stall_s
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.process: EngineProcess | None = None

    async def start(self) -> None:
        """Return when the first process is ready. Where it ends before that, raise why; it is not started again."""
        self._task = asyncio.create_task(self._keep_running())
        await asyncio.wait([self._task, self._ready], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            await self._task

    async def close(self) -> None:
        """End the process for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            process = EngineProcess(self._owner.on_message, self._stall_s)
            problem = await self._run_once(process)
            if not self._ready.done():
                raise process.error or EngineFailedError(f"The engine could not be loaded: {problem}.")
            if not process.ready.done():
                self._owner.on_failed_restart(problem)
            elif time.monotonic() - process.ready.result() > HEALTHY_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _run_once(self, process: EngineProcess) -> str:
        """Run a process from its start to its end. The result is why it ended."""
        try:
            await process.start(self._command)
        except OSError as error:
            return f"its process could not be started: {error}"
        self.process = process
        try:
            either: list[asyncio.Future[Any]] = [process.ready, process.ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if process.ready.done() and not self._ready.done():
                self._ready.set_result(None)
            problem = await process.ended
            if process.ready.done():
                self._owner.on_end(problem)
            return problem
        finally:
            self.process = None
            await process.end()
