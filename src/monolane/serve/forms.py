"""Forms that answers must have (JSON schemas, calls), checked in a process that can be killed.

A schema is a program of a stranger's: it may take for ever, or all memory. The process that tries it has a time limit
and a memory limit; the engine sees only what has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import threading
from collections import OrderedDict
from typing import Any, Literal

from monolane.engine.core import PYTHON
from monolane.engine.grammar import require_llguidance
from monolane.errors import QueueFullError, ResourceError, UsageError

Kind = Literal["json_schema", "lark"]

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
TRIAL_S = 4.0  # to try one form
START_S = 30.0  # for the process to start: a busy machine is slow to import
MOST_WAITING = 16  # forms that wait to be tried
MOST_KEPT = 64  # forms known to be good: agents send the same ones again and again


class Forms:
    """Turns forms into grammars for the engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._good: OrderedDict[tuple[Kind, str], str] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None

    async def schema(self, schema: object, name: str) -> str:
        """The grammar of a JSON schema; ``name`` is the field it came in."""
        check_schema(schema, name)
        return await self.compile("json_schema", json.dumps(schema), name)

    async def compile(self, kind: Kind, text: str, name: str) -> str:
        require_llguidance()
        if (kind, text) in self._good:
            self._good.move_to_end((kind, text))
            return self._good[kind, text]
        if self._waiting >= MOST_WAITING:
            raise QueueFullError("Too many schemas wait to be checked.", "Try again in a moment.")
        self._waiting += 1
        try:
            answer = await asyncio.to_thread(self._try, json.dumps([kind, text]).encode() + b"\n")
        finally:
            self._waiting -= 1
        if answer is None:
            raise UsageError(f"{name} takes too much time or memory to be followed.", "Simplify it.")
        if "error" in answer:
            raise UsageError(f"{name} cannot be followed: {answer['error']}", "Change it accordingly.")
        grammar: str = answer["grammar"]
        self._good[kind, text] = grammar
        while len(self._good) > MOST_KEPT:
            self._good.popitem(last=False)
        return grammar

    def close(self) -> None:
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None and pipe is not None:
            process.kill()
            process.wait()
            pipe.close()

    # --- in a thread ---

    def _try(self, line: bytes) -> dict[str, Any] | None:
        """What the process says; None where it took too long or died."""
        with self._lock:
            if self._process is None:
                self._start()
            try:
                answer = self._ask(line, TRIAL_S)
            except OSError:  # a timeout is one too
                answer = None
            if answer is None:
                self.close()
            return answer

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "monolane.serve.form_worker"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                process_group=0,  # Ctrl-C is ours to handle
            )
        self._pipe = ours
        ready = None
        with contextlib.suppress(OSError):
            ready = self._ask(b"", START_S)
        if ready is None:
            self.close()
            raise ResourceError("The process that checks schemas did not start.", "The server's log says why.")

    def _ask(self, line: bytes, seconds: float) -> dict[str, Any] | None:
        assert self._pipe is not None
        self._pipe.settimeout(seconds)
        self._pipe.sendall(line)
        heard = b""
        while not heard.endswith(b"\n"):
            if not (more := self._pipe.recv(1 << 16)):
                return None
            heard += more
        answer: dict[str, Any] = json.loads(heard)
        return answer


def check_schema(schema: object, name: str) -> None:
    """UsageError for a schema that is none, or is too large or too deep."""
    if not isinstance(schema, dict):
        raise UsageError(f"{name} is not a schema.", "Give a JSON object.")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise UsageError(f"{name} is nested too deeply.", f"{MAX_SCHEMA_DEPTH} levels are the most.")
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise UsageError(f"{name} has {size} bytes.", f"{MAX_SCHEMA_BYTES} are the most.")


def depth_of(value: object) -> int:
    """Levels of objects and lists, without recursion: this is before anything is known of it."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth
