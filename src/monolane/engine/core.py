"""The engine process: a target with its KV caches, which runs one request at a time, driven by messages over a pipe.

main thread       loads the model, then runs one request after the other
receiver thread   receives messages; a cancellation stops the running request at once; when the supervisor closes the
                  pipe or dies, the process exits
heartbeat thread  shows that this process is alive, and checks that the device is: the steps of a run must grow
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from monolane.engine import messages
from monolane.engine.constraint import Constraint
from monolane.engine.generation import Generation
from monolane.engine.session import Session
from monolane.engine.state import TargetInfo
from monolane.engine.token_ring import TokenRing
from monolane.errors import MonolaneError, NotEnoughMemoryError, TargetError, UsageError
from monolane.target.base import Finish, Target

if TYPE_CHECKING:
    from monolane.progress import Progress

PYTHON = (sys.executable, "-P")  # -P: nothing is imported from the folder that a user happens to be in
BEAT_S = 0.05  # between two heartbeats
PROGRESS_S = 0.1  # between two messages about the same step of loading
EXIT_S = 2.0  # to free the target once the supervisor is gone
TOKENS_PER_MESSAGE = 256  # written to the ring at most before the supervisor is told

Loaded = tuple[Target, Callable[[str], Constraint]]  # a target, and what makes a constraint of a grammar


def core_command(path: Path, **options: object) -> list[str]:
    """The command line of an engine process for a model; the options are those of ``open_target``. The supervisor
    appends two file descriptors."""
    return [*PYTHON, "-m", "monolane.engine.core", json.dumps({"path": str(path)} | options)]


def main() -> None:
    options = json.loads(sys.argv[1])
    serve(lambda progress: _load(progress, Path(options.pop("path")), **options))


def serve(load: Callable[[Progress], Loaded]) -> None:
    """Run an engine process. The last two arguments of its command are file descriptors: the pipe and the ring."""
    pipe_file, ring_file = map(int, sys.argv[-2:])
    for file in (pipe_file, ring_file):
        os.set_inheritable(file, False)  # a compiler that this process starts must not keep the pipe open
    faulthandler.enable()
    # A terminal or service manager signals all processes at once, but the supervisor decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _exit)
    with socket.socket(fileno=pipe_file) as pipe:
        EngineCore(pipe, TokenRing(ring_file)).run(load)


class EngineCore:
    """The engine's end of the pipe and the ring."""

    def __init__(self, pipe: socket.socket, ring: TokenRing) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._ring = ring
        self._submitted: queue.SimpleQueue[messages.Submit] = queue.SimpleQueue()
        self._generation: Generation | None = None
        self._stall_s = math.inf
        self._number = 0  # of the request that runs, or ran last
        self._cancelled = 0  # the latest request that was cancelled, perhaps before it ran

    def run(self, load: Callable[[Progress], Loaded]) -> None:
        """Serve requests until the supervisor closes the pipe or the target fails."""
        for name, task in (("receiver", self._receive), ("heartbeat", self._heartbeat)):
            threading.Thread(target=task, name=f"monolane-{name}", daemon=True).start()
        try:
            target, constrain = load(ProgressMessages(self.send))
        except MonolaneError as error:
            memory = (error.needed, error.available) if isinstance(error, NotEnoughMemoryError) else None
            self.send(messages.LoadFailed(type(error).__name__, error.message, error.hint, memory))
            sys.exit(error.exit_code)
        session, self._stall_s = Session(target), target.stall_s
        try:
            sizes = (target.context, target.bytes_per_token, target.caches, target.memory_bytes)
            self.send(messages.Ready(TargetInfo(target.name, *sizes)))
            while self._generate(session, constrain, self._submitted.get()):
                pass
            os._exit(1)  # closing a target that has failed might never return
        finally:
            session.close()

    def send(self, message: messages.FromEngine) -> None:
        with self._sending, suppress(ConnectionError):  # the supervisor is gone: the receiver thread ends the process
            self._pipe.sendall(messages.encode(message))

    def _generate(self, session: Session, constrain: Callable[[str], Constraint], submitted: messages.Submit) -> bool:
        """Run one request; False where the target must not be used again."""
        number = self._number = submitted.number
        try:
            constraint = None if submitted.grammar is None else constrain(submitted.grammar)
            if submitted.prompt_logprobs is not None:
                entries = session.prompt_logprobs(submitted.request.tokens, submitted.prompt_logprobs)
                self.send(messages.PromptLogprobs(number, entries))
            with session.generate(submitted.request, constraint) as generation:
                self._generation = generation
                if self._cancelled == number:  # before there was a generation to abort
                    generation.abort()
                self.send(messages.Started(number, generation.cached))
                for batch in generation:
                    for first in range(0, len(batch), TOKENS_PER_MESSAGE):
                        self._ring.write(batch[first : first + TOKENS_PER_MESSAGE], while_full=self._ring.beat)
                        self.send(messages.Tokens(self._ring.written))
                self._generation = None  # its steps need not grow any more
            self.send(messages.Ended(number, generation.finish or Finish.ABORT, generation.start_ns))
        except UsageError as error:
            self.send(messages.Refused(number, error.message, error.hint))
        except TargetError as error:
            self.send(messages.Failed(number, error.message, error.hint))
            return False
        finally:
            self._generation = None
        return True

    def _receive(self) -> None:
        try:
            for message in messages.receive(self._pipe):
                match message:
                    case messages.Submit():
                        self._submitted.put(message)
                    case messages.Cancel(number):
                        self._cancelled = number
                        if number == self._number and (generation := self._generation):
                            generation.abort()
        finally:  # the supervisor has closed the pipe, or is dead
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(EXIT_S)
            os._exit(1)

    def _heartbeat(self) -> None:
        """Beat until the device makes no more progress; then the process exits with an error."""
        steps, still = None, 0  # checks are counted, not seconds: while the machine is suspended, nothing is stuck
        while still * BEAT_S < self._stall_s:
            self._ring.beat()
            time.sleep(BEAT_S)
            before, steps = steps, self._steps()
            still = still + 1 if steps is not None and steps == before else 0
        message = f"The device has made no step for {still * BEAT_S:.1f} s."
        self.send(messages.Failed(self._number, message, "The engine restarts: ask again in a moment."))
        os._exit(1)

    def _steps(self) -> int | None:
        """The progress counter of the running request; None where no request runs."""
        generation = self._generation
        with suppress(TargetError):  # the target has been closed meanwhile
            return None if generation is None else generation.steps
        return None


class ProgressMessages:
    """Sends the progress of loading as messages, one every 0.1 s at most."""

    def __init__(self, send: Callable[[messages.FromEngine], None]) -> None:
        self._send = send
        self._label = ""
        self._done = self._total = 0
        self._sent_s = 0.0

    def start(self, total_bytes: int, label: str) -> None:
        self._label, self._done, self._total = label, 0, total_bytes
        self._send_progress()

    def advance(self, bytes_done: int) -> None:
        self._done += bytes_done
        if time.monotonic() - self._sent_s > PROGRESS_S:
            self._send_progress()

    def note(self, text: str) -> None:
        self._send(messages.Note(text))

    def done(self) -> None:
        self._send_progress()

    def _send_progress(self) -> None:
        self._sent_s = time.monotonic()
        self._send(messages.Loading(self._label, self._done, self._total))


def _load(progress: Progress, path: Path, **options: Any) -> Loaded:
    from monolane.engine.grammar import grammar_maker
    from monolane.model.load import start_loading
    from monolane.target import open_target

    model = start_loading(path)
    target = open_target(model.config, model.weights, progress=progress, **options)
    return target, grammar_maker(model.tokenizer, model.stop_tokens, model.config.vocab)


def _exit(_: int, __: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
