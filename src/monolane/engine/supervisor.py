"""Keeps an engine running: starts its process, and starts another when that one has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from monolane import errors
from monolane.engine import messages
from monolane.engine.engine_process import EngineProcess
from monolane.errors import EngineFailedError, MonolaneError

FIRST_PAUSE_S = 0.1  # before the first restart; doubled with each that follows soon
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 10.0  # a process that served so long was well: the next pause is the first one again


class Owner(Protocol):
    """Whoever has work for the engine."""

    def on_message(self, message: messages.FromEngine) -> None:
        """The engine says something."""

    def on_end(self, problem: str) -> None:
        """The engine's process has ended unasked; another one is started."""

    def on_failed_restart(self, problem: str) -> None:
        """Another one did not come up. It is tried again."""


class Supervisor:
    """One engine process at a time. ``command`` starts it; nothing of it runs in this process."""

    def __init__(self, command: Sequence[str], owner: Owner, stall_s: float) -> None:
        self._command = command
        self._owner = owner
        self._stall_s = stall_s
        self._process: EngineProcess | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready_at: float | None = None  # of the process that runs now
        self._error: MonolaneError | None = None  # why it ends, in its own words
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the engine is ready. An engine that does not come up at all is not tried again: raises why."""
        self._task = asyncio.create_task(self._keep_running())
        await asyncio.wait([self._task, self._ready], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            await self._task

    async def close(self) -> None:
        """End the process for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def process(self) -> EngineProcess | None:
        return self._process

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            problem = await self._live_once()
            if not self._ready.done():
                raise self._error or EngineFailedError(f"The engine could not be loaded: {problem}.")
            if self._ready_at is None:
                self._owner.on_failed_restart(problem)
            elif time.monotonic() - self._ready_at > HEALTHY_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _live_once(self) -> str:
        """From start to end; why it ended."""
        self._ready_at = self._error = None
        process = EngineProcess(self._hear, self._stall_s)
        try:
            await process.start(self._command)
        except OSError as error:
            return f"its process could not be started: {error}"
        self._process = process
        try:
            problem = await process.ended
            if self._error is not None:
                problem = self._error.message.removesuffix(".")
            if self._ready_at is not None:
                self._owner.on_end(problem)
            return problem
        finally:
            self._process = None
            await process.end()

    def _hear(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Ready():
                self._ready_at = time.monotonic()
                if not self._ready.done():
                    self._ready.set_result(None)
            case messages.Broken(kind, text, hint):
                self._error = _error_named(kind)(text, hint)
            case messages.Failed(_, text, hint):
                self._error = EngineFailedError(text, hint)
        self._owner.on_message(message)


def _error_named(kind: str) -> Callable[[str, str], MonolaneError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, MonolaneError) else MonolaneError
