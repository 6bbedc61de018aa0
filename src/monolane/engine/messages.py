"""The messages between the supervisor and the engine process: MessagePack structs, each behind its length in bytes.

Tokens travel through the token ring in shared memory instead; ``Tokens`` only says how many were written.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from monolane.engine.state import TargetInfo
from monolane.target.base import Finish, Request

_LENGTH = struct.Struct("<I")
MAX_BYTES = 64 << 20  # of one message: far more than a prompt that fills any context


class Message(msgspec.Struct, tag=True):
    """The base of all messages."""


class Submit(Message):
    """To the engine: run this request next. ``number`` identifies it in later messages."""

    number: int
    request: Request
    grammar: str | None = None
    prompt_logprobs: int | None = None  # n: also tell the logprobs of the prompt's tokens, and of the n likeliest ones


class Cancel(Message):
    """To the engine: stop that request within one token. A request that has ended is not an error."""

    number: int


class Loading(Message):
    """From the engine: the progress of one step of loading, which ``label`` names."""

    label: str
    done_bytes: int
    total_bytes: int


class Note(Message):
    """From the engine: a line for the user."""

    text: str


class Ready(Message):
    """From the engine: the model is loaded."""

    target: TargetInfo


class LoadFailed(Message):
    """From the engine: the model could not be loaded, and the process exits. ``kind`` is the class of the error.
    Where there is not enough memory, the bytes that it needs, and those that are available, are told too."""

    kind: str
    message: str
    hint: str
    memory: tuple[int, int] | None = None


class Started(Message):
    """From the engine: a request has started on the target, with so many tokens of its prompt found in a KV cache."""

    number: int
    cached_tokens: int


class Scored(msgspec.Struct):
    """The logprob of a token of a prompt, and of the likeliest tokens in its place, best first."""

    logprob: float
    top: list[tuple[int, float]]


class PromptLogprobs(Message):
    """From the engine: the logprobs of a prompt's tokens, of all but the first."""

    number: int
    entries: list[Scored]


class Tokens(Message):
    """From the engine: the number of tokens written to the ring since the process started."""

    written: int


class Ended(Message):
    """From the engine: a request has ended. ``start_ns`` is when the target started it, on the target's clock."""

    number: int
    finish: Finish
    start_ns: int


class Refused(Message):
    """From the engine: this request cannot be run as it is. The engine itself is well."""

    number: int
    message: str
    hint: str


class Failed(Message):
    """From the engine: the target failed during this request. The process exits, and another one is started."""

    number: int
    message: str
    hint: str


ToEngine = Submit | Cancel
FromEngine = Loading | Note | Ready | LoadFailed | Started | PromptLogprobs | Tokens | Ended | Refused | Failed

_encoder = msgspec.msgpack.Encoder()
TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a byte stream into message bodies, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, data: bytes) -> Iterator[bytes]:
        held, start = self._held, 0
        held += data
        while len(held) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, start)
            if length > MAX_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = start + _LENGTH.size + length
            if len(held) < end:
                break
            yield bytes(held[start + _LENGTH.size : end])
            start = end
        del held[:start]


def receive(pipe: socket.socket) -> Iterator[ToEngine]:
    """The supervisor's messages as they arrive, until it closes the pipe or dies."""
    frames = Frames()
    while data := pipe.recv(1 << 16):
        yield from map(TO_ENGINE.decode, frames.push(data))
