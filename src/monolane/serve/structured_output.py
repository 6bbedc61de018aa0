"""Structured output: JSON schemas and tool calls become grammars, in a process that can be killed.

A schema is a stranger's program: compiling it may take forever, or all memory. The process that compiles it has a time
limit and a memory limit; the engine gets only grammars that have passed.
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
from monolane.errors import QueueFullError, ResourceError, UsageError

Kind = Literal["json_schema", "lark"]

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
COMPILE_S = 4.0  # to compile one grammar
START_S = 30.0  # for the process to start: a busy machine is slow to import
MAX_WAITING = 16  # grammars that wait to be compiled
MAX_KEPT = 64  # compiled grammars: agents send the same schemas again and again


class GrammarCompiler:
    """Compiles structured-output constraints into grammars for the engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._compiled: OrderedDict[tuple[Kind, str], str] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None

    async def schema(self, schema: object, name: str) -> str:
        """The grammar of a JSON schema; ``name`` is the field of the request that had it."""
        check_schema(schema, name)
        return await self.compile("json_schema", json.dumps(schema), name)

    async def compile(self, kind: Kind, text: str, name: str) -> str:
        if (kind, text) in self._compiled:
            self._compiled.move_to_end((kind, text))
            return self._compiled[kind, text]
        if self._waiting >= MAX_WAITING:
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
        self._compiled[kind, text] = grammar
        while len(self._compiled) > MAX_KEPT:
            self._compiled.popitem(last=False)
        return grammar

    def close(self) -> None:
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None and pipe is not None:
            process.kill()
            process.wait()
            pipe.close()

    # --- in a thread ---

    def _try(self, line: bytes) -> dict[str, Any] | None:
        """The answer of the process; None where it took too long or died."""
        with self._lock:
            if self._process is None:
                self._start()
            try:
                answer = self._ask(line, COMPILE_S)
            except OSError:  # a timeout is one too
                answer = None
            if answer is None:
                self.close()
            return answer

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "monolane.serve.grammar_process"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                process_group=0,  # Ctrl-C in the terminal is for the server alone
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
        received = b""
        while not received.endswith(b"\n"):
            if not (more := self._pipe.recv(1 << 16)):
                return None
            received += more
        answer: dict[str, Any] = json.loads(received)
        return answer


def check_schema(schema: object, name: str) -> None:
    """UsageError for a schema that is not a JSON object, or is too large or nested too deeply."""
    if not isinstance(schema, dict):
        raise UsageError(f"{name} is not a schema.", "Give a JSON object.")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise UsageError(f"{name} is nested too deeply.", f"{MAX_SCHEMA_DEPTH} levels are the most.")
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise UsageError(f"{name} has {size} bytes.", f"{MAX_SCHEMA_BYTES} are the most.")


def depth_of(value: object) -> int:
    """Levels of objects and lists. It does not recurse, because a hostile value may be nested without limit."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth
