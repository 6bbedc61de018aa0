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

    async def compile(self, kind: Kind, text: str, name: str) -> str:
        """The grammar of a JSON schema, or of a grammar in llguidance's notation; ``name`` is the field of the request
        that had it."""
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
            raise UsageError(f"{name} cannot be followed: {_in_our_words(answer['error'])}.", "Simplify it.")
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


def _in_our_words(error: str) -> str:
    """Why a schema cannot be followed. llguidance speaks of its own insides, which are no business of clients."""
    if "regex" in error.lower():
        return "it has a pattern that is not a regular expression, or not one that grammars know"
    if "unsatisfiable" in error.lower():
        return "it contradicts itself"
    return "it uses JSON Schema in a way that grammars do not know, or takes too much to follow"
