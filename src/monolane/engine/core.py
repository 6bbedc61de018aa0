"""The engine's process: a target and its caches, one request at a time, told what to do through a pipe.

main thread       loads, then runs one request after the other
listening thread  takes messages; a cancellation reaches the run at once; when the supervisor is gone, so are we
beating thread    shows that the process is alive, and looks whether the device is, by the steps that a run makes
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
from typing import TYPE_CHECKING

from monolane.engine import messages
from monolane.engine.constrained import Constraint
from monolane.engine.session import Session, Turn
from monolane.engine.token_ring import TokenRing
from monolane.errors import MonolaneError, TargetError, UsageError
from monolane.target.base import Finish, Target

if TYPE_CHECKING:
    from monolane.progress import Progress

PYTHON = (sys.executable, "-P")  # -P: nothing is imported from the folder that a user happens to be in
BEAT_S = 0.05
TELL_S = 0.1  # between two messages about the same piece of loading
GOODBYE_S = 2.0  # to free what is held once the supervisor is gone
AT_ONCE = 256  # tokens written before the supervisor is told

Loaded = tuple[Target, Callable[[str], Constraint]]  # a target, and how a grammar becomes a constraint


def core_command(path: Path, device: str, workers: int | None, context: int | None) -> list[str]:
    """What starts an engine for a model. The supervisor adds the numbers of its two files."""
    options = {"path": str(path), "device": device, "workers": workers, "context": context}
    return [*PYTHON, "-m", "monolane.engine.core", json.dumps(options)]


def main() -> None:
    options = json.loads(sys.argv[1])
    serve(lambda progress: _load(progress, Path(options.pop("path")), **options))


def serve(load: Callable[[Progress], Loaded]) -> None:
    """The life of an engine's process. Its last two arguments are the files it was given: the pipe and the ring."""
    pipe_file, ring_file = map(int, sys.argv[-2:])
    for file in (pipe_file, ring_file):
        os.set_inheritable(file, False)  # a compiler that we start must not keep the pipe open
    faulthandler.enable()
    # A terminal or service manager signals all processes at once; the supervisor decides when we end, by the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _leave)
    with socket.socket(fileno=pipe_file) as pipe:
        EngineCore(pipe, TokenRing(ring_file)).run(load)


class EngineCore:
    """One end of the pipe."""

    def __init__(self, pipe: socket.socket, ring: TokenRing) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._ring = ring
        self._asked: queue.SimpleQueue[messages.Run] = queue.SimpleQueue()
        self._turn: Turn | None = None
        self._stall_s = math.inf
        self._number = 0  # of the request whose turn it is
        self._cancelled = 0  # the latest request that was cancelled: also one whose turn has not come yet

    def run(self, load: Callable[[Progress], Loaded]) -> None:
        """Until the supervisor goes away, or the target fails."""
        for task in (self._listen, self._beat):
            threading.Thread(target=task, name=f"monolane{task.__name__}", daemon=True).start()
        try:
            target, constrain = load(Teller(self.tell))
        except MonolaneError as error:
            self.tell(messages.Broken(type(error).__name__, error.message, error.hint))
            sys.exit(error.exit_code)
        session, self._stall_s = Session(target), target.stall_s
        try:
            self.tell(messages.Ready(target.name, target.context, target.bytes_per_token, target.caches))
            while self._answer(session, constrain, self._asked.get()):
                pass
            os._exit(1)  # a target that has failed may never let go
        finally:
            session.close()

    def tell(self, message: messages.FromEngine) -> None:
        with self._sending, suppress(ConnectionError):  # nobody hears: the listening thread ends us
            self._pipe.sendall(messages.encode(message))

    def _answer(self, session: Session, constrain: Callable[[str], Constraint], asked: messages.Run) -> bool:
        """Run one request; False when the target is not to be used again."""
        number = self._number = asked.number
        try:
            constraint = None if asked.grammar is None else constrain(asked.grammar)
            with session.turn(asked.request, constraint) as turn:
                self._turn = turn
                if self._cancelled == number:  # before there was something to abort
                    turn.abort()
                self.tell(messages.Started(number, turn.cached))
                for batch in turn:
                    for first in range(0, len(batch), AT_ONCE):
                        self._ring.write(batch[first : first + AT_ONCE], while_full=self._ring.beat)
                        self.tell(messages.Tokens(self._ring.written))
                self._turn = None  # no more steps are to be expected
            self.tell(messages.Ended(number, turn.finish or Finish.ABORT, turn.start_ns))
        except UsageError as error:
            self.tell(messages.Refused(number, error.message, error.hint))
        except TargetError as error:
            self.tell(messages.Failed(number, error.message, error.hint))
            return False
        finally:
            self._turn = None
        return True

    def _listen(self) -> None:
        try:
            for message in messages.receive(self._pipe):
                match message:
                    case messages.Run():
                        self._asked.put(message)
                    case messages.Cancel(number):
                        self._cancelled = number
                        if number == self._number and (turn := self._turn):
                            turn.abort()
        finally:  # the pipe is closed: the supervisor has closed it, or is dead
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(GOODBYE_S)
            os._exit(1)

    def _beat(self) -> None:
        """Beat for ever, as long as the device does not stand still."""
        steps, still = None, 0  # looks are counted, and not the time: where all of us were halted, nobody is stuck
        while still * BEAT_S < self._stall_s:
            self._ring.beat()
            time.sleep(BEAT_S)
            before, steps = steps, self._steps()
            still = still + 1 if steps is not None and steps == before else 0
        message = f"The device has made no step for {still * BEAT_S:.1f} s."
        self.tell(messages.Failed(self._number, message, "The engine restarts: ask again in a moment."))
        os._exit(1)

    def _steps(self) -> int | None:
        """How far the run under way has come; None where there is none."""
        turn = self._turn
        with suppress(TargetError):  # it has been closed
            return None if turn is None else turn.run.steps
        return None


class Teller:
    """Progress of the loading as messages, not more of them than a person can read."""

    def __init__(self, tell: Callable[[messages.FromEngine], None]) -> None:
        self._tell = tell
        self._label = ""
        self._done = self._total = 0
        self._told = 0.0

    def start(self, total_bytes: int, label: str) -> None:
        self._label, self._done, self._total = label, 0, total_bytes
        self._say()

    def advance(self, bytes_done: int) -> None:
        self._done += bytes_done
        if time.monotonic() - self._told > TELL_S:
            self._say()

    def note(self, text: str) -> None:
        self._tell(messages.Note(text))

    def done(self) -> None:
        self._say()

    def _say(self) -> None:
        self._told = time.monotonic()
        self._tell(messages.Loading(self._label, self._done, self._total))


def _load(progress: Progress, path: Path, device: str, workers: int | None, context: int | None) -> Loaded:
    from monolane.engine.grammar import grammar_maker
    from monolane.model.load import load_model
    from monolane.target import open_target

    model = load_model(path)
    target = open_target(
        model.config, model.weights, device=device, workers=workers, context=context, progress=progress
    )
    return target, grammar_maker(model.tokenizer, model.stop_tokens, model.config.vocab)


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
