"""One life of the engine's process, seen from its supervisor: started, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

from monolane.engine import messages
from monolane.engine.token_ring import open_ring
from monolane.target.base import Token

TICK_S = 0.1  # between two looks at the heartbeat
LOAD_STALL_S = 60.0  # the longest a loading process may show no sign of life
CAUSE_S = 0.5  # to learn how a process ended; whoever waits for its answer should not wait longer
GOODBYE_S = 3.0  # for a process to end by itself; then it is killed


class EngineProcess(asyncio.Protocol):
    """A child process and the two ways to it: a pipe for messages, a ring for tokens.

    ``on_message`` hears what it says. ``ended`` is done, with the reason for people, as soon as nothing more is to be
    expected of it: it has died, or it has shown no sign of life for ``stall_s`` seconds and has been killed.
    """

    def __init__(self, on_message: Callable[[messages.FromEngine], None], stall_s: float) -> None:
        self._on_message = on_message
        self._stall_s = stall_s
        self._loading = True
        self._frames = messages.Frames()
        self._ring = open_ring()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            files = (theirs.fileno(), self._ring.file)
            try:
                self._process = subprocess.Popen(
                    [*command, *map(str, files)],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C is the supervisor's to handle
                )
            except OSError:
                self._ring.close()
                raise
        ours.setblocking(False)
        self._pipe, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        self._watch = asyncio.create_task(self._watch_beats())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: messages.ToEngine) -> None:
        if not self._pipe.is_closing():
            self._pipe.write(messages.encode(message))

    def tokens(self, written: int) -> list[Token]:
        """What is new in the ring."""
        return self._ring.read(written)

    async def end(self) -> None:
        """Close the pipe, which ends the process, and see that it is gone; kill it where it does not go."""
        self._watch.cancel()
        self._pipe.close()
        try:
            await asyncio.to_thread(self._process.wait, GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # held by a driver: no reason to wait with it
                await asyncio.to_thread(self._process.wait, GOODBYE_S)
        self._ring.close()

    # --- what the event loop calls ---

    def data_received(self, data: bytes) -> None:
        for body in self._frames.push(data):
            message = messages.FROM_ENGINE.decode(body)
            if isinstance(message, messages.Ready):
                self._loading = False
            if not self.ended.done():
                self._on_message(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._burial = asyncio.create_task(self._find_cause())

    async def _find_cause(self) -> None:
        """Its pipe is closed, so it is as good as dead; how it died is known once the system has cleared it away."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, CAUSE_S)
        if not self.ended.done():
            self.ended.set_result(f"its process {_cause(self._process.returncode)}")

    async def _watch_beats(self) -> None:
        beats, missed = self._ring.beats, 0
        # Looks are counted, and not the time: where the whole machine was halted, the engine is not to blame.
        while missed * TICK_S < (LOAD_STALL_S if self._loading else self._stall_s):
            await asyncio.sleep(TICK_S)
            before, beats = beats, self._ring.beats
            missed = missed + 1 if beats == before else 0
        self._process.kill()
        if not self.ended.done():
            self.ended.set_result(f"it showed no sign of life for {missed * TICK_S:.1f} s")


def _cause(code: int | None) -> str:
    if code is None:
        return "is ending"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
