"""The token ring: shared memory that carries tokens from the engine process to the supervisor, and its heartbeat.

The engine process writes, the supervisor reads. The number of tokens written travels as a ``messages.Tokens``, so no
token is read before it is complete. The memory has no name: it is freed with the two processes, however they end.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain

from monolane.program.sample import MAX_LOGPROBS
from monolane.target.base import Token

CAPACITY = 4096  # tokens: most of a second at 5,000 tokens/s
FULL_POLL_S = 1e-3  # between two checks whether a full ring has room again

_BEAT = struct.Struct("<Q")
_READ = struct.Struct("<Q")
_BEAT_AT, _READ_AT, _TOKENS_AT = 0, 64, 128  # a cache line for what each side writes
_TOKEN = struct.Struct("<iiqd")  # id, number of likeliest tokens (-1: no logprobs at all), time in ns, logprob
_TOPS = [struct.Struct("<" + "id" * count) for count in range(MAX_LOGPROBS + 1)]  # id and logprob of each
_STRIDE = _TOKEN.size + _TOPS[MAX_LOGPROBS].size
_NO_LOGPROBS = -1


class TokenRing:
    """One end of the ring. ``open_ring`` makes the supervisor's; the engine process maps the same file."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory = mmap.mmap(file, _TOKENS_AT + CAPACITY * _STRIDE)
        self._done = 0  # tokens written, or read, by this side

    @property
    def written(self) -> int:
        return self._done

    def beat(self) -> None:
        """Increase the heartbeat counter."""
        _BEAT.pack_into(self._memory, _BEAT_AT, self.beats + 1)

    @property
    def beats(self) -> int:
        return int(_BEAT.unpack_from(self._memory, _BEAT_AT)[0])

    def write(self, tokens: Sequence[Token], while_full: Callable[[], None]) -> None:
        """Write tokens. Where the ring is full, wait for the reader, and call ``while_full`` meanwhile."""
        for token in tokens:
            while self._done - _READ.unpack_from(self._memory, _READ_AT)[0] >= CAPACITY:
                while_full()
                time.sleep(FULL_POLL_S)
            self._put(token, _TOKENS_AT + self._done % CAPACITY * _STRIDE)
            self._done += 1

    def read(self, written: int) -> list[Token]:
        """The tokens that are new, when ``written`` have been written in all."""
        tokens = [self._get(_TOKENS_AT + place % CAPACITY * _STRIDE) for place in range(self._done, written)]
        self._done = written
        _READ.pack_into(self._memory, _READ_AT, written)
        return tokens

    def close(self) -> None:
        self._memory.close()
        os.close(self.file)

    def _put(self, token: Token, place: int) -> None:
        count = _NO_LOGPROBS if token.logprob is None else len(token.top)
        _TOKEN.pack_into(self._memory, place, token.id, count, token.time_ns, token.logprob or 0.0)
        if token.top:
            _TOPS[count].pack_into(self._memory, place + _TOKEN.size, *chain.from_iterable(token.top))

    def _get(self, place: int) -> Token:
        token, count, time_ns, logprob = _TOKEN.unpack_from(self._memory, place)
        if count == _NO_LOGPROBS:
            return Token(token, time_ns)
        tops = _TOPS[min(count, MAX_LOGPROBS)].unpack_from(self._memory, place + _TOKEN.size)
        return Token(token, time_ns, logprob, tuple(zip(tops[::2], tops[1::2], strict=True)))


def open_ring() -> TokenRing:
    """A new ring; a child process gets it as a file descriptor."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("monolane-tokens")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, _TOKENS_AT + CAPACITY * _STRIDE)
    return TokenRing(file)
