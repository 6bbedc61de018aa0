"""One engine process as the supervisor sees it: started, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence

from monolane import errors
from monolane.engine import messages
from monolane.engine.starvation import Starvation, visit_processors
from monolane.engine.token_ring import open_ring
from monolane.errors import EngineFailedError, MonolaneError, NotEnoughMemoryError
from monolane.target.base import Token

TICK_S = 0.1  # between two checks of the heartbeat
LOAD_STALL_S = 60.0  # the longest a process that loads may show no heartbeat
CAUSE_S = 2.0  # to learn how a process ended; the client whose request failed should not wait longer
EXIT_S = 3.0  # for a process to exit by itself; then it is killed


class EngineProcess(asyncio.Protocol):
    """A child process and its two channels: a pipe for messages, a ring in shared memory for tokens.

    on_message  is called with every message
    ready       is done when the model is loaded; its result is that moment on ``time.monotonic()``
    ended       is done when nothing more will come: the process has died, or was killed because its heartbeat had
                stopped for ``stall_s`` seconds, and not for lack of processor time; the result says why, for people
    error       is what the process itself reported before it ended, if anything
    """

    def __init__(self, on_message: Callable[[messages.FromEngine], None], stall_s: float) -> None:
        self._on_message = on_message
        self._stall_s = stall_s
        self._frames = messages.Frames()
        self._ring = open_ring()
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[float] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.error: MonolaneError | None = None

    async def start(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            files = (theirs.fileno(), self._ring.file)
            try:
                self._process = subprocess.Popen(
                    [*command, *map(str, files)],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C in the terminal is for the supervisor alone
                )
            except OSError:
                self._ring.close()
                raise
        ours.setblocking(False)
        self._pipe, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        self._watchdog = asyncio.create_task(self._watch_heartbeat())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: messages.ToEngine) -> None:
        if not self._pipe.is_closing():
            self._pipe.write(messages.encode(message))

    def tokens(self, written: int) -> list[Token]:
        """The tokens in the ring that are new, when ``written`` have been written in all."""
        return self._ring.read(written)

    async def end(self) -> None:
        """Close the pipe, which makes the process exit; kill it where it does not exit in time."""
        self._watchdog.cancel()
        self._pipe.close()
        try:
            await asyncio.to_thread(self._process.wait, EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver holds it: waiting longer would not help
                await asyncio.to_thread(self._process.wait, EXIT_S)
        self._ring.close()

    # --- called by the event loop ---

    def data_received(self, data: bytes) -> None:
        for body in self._frames.push(data):
            message = messages.FROM_ENGINE.decode(body)
            if self.ended.done():
                continue
            match message:
                case messages.Ready():
                    self.ready.set_result(time.monotonic())
                case messages.LoadFailed(kind, text, hint, memory):
                    self.error = _error_class(kind)(text, hint)
                    if isinstance(self.error, NotEnoughMemoryError) and memory is not None:
                        self.error.needed, self.error.available = memory
                case messages.Failed(_, text, hint):
                    self.error = EngineFailedError(text, hint)
            self._on_message(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._reaping = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        """The pipe is closed, so the process has died or soon will; its exit status says how."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, CAUSE_S)
        self._set_ended(f"its process {_cause(self._process.returncode)}")

    async def _watch_heartbeat(self) -> None:
        beats, missed, visited, starvation = self._ring.beats, 0, False, Starvation(self.pid)
        # Checks are counted, not seconds: while the whole machine is suspended, the engine is not at fault.
        while missed * TICK_S < (self._stall_s if self.ready.done() else LOAD_STALL_S):
            await asyncio.sleep(TICK_S)
            before, beats = beats, self._ring.beats
            if beats != before:
                missed, visited = 0, False
                starvation.restart()
            elif not starvation.is_likely():
                missed += 1
                if missed * TICK_S >= self._stall_s and not visited:
                    await asyncio.to_thread(visit_processors, self.pid)
                    missed, visited = missed - 1, True  # one more check: its processor may only now be back
        self._process.kill()
        self._set_ended(f"it showed no sign of life for {missed * TICK_S:.1f} s")

    def _set_ended(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(self.error.message.removesuffix(".") if self.error else reason)


def _error_class(name: str) -> Callable[[str, str], MonolaneError]:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, MonolaneError) else MonolaneError


def _cause(code: int | None) -> str:
    if code is None:
        return "is ending"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
