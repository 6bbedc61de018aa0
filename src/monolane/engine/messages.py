"""What the engine's process and its supervisor say to each other: typed messages, each behind its length in bytes.

Tokens do not travel here but through the ring in shared memory; ``Tokens`` only says how many are there.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgspec

from monolane.target.base import Finish, Request

_LENGTH = struct.Struct("<I")
MAX_BYTES = 64 << 20  # of one message: far more than the prompt that fills any context


class Message(msgspec.Struct, tag=True):
    """Base of all messages."""


class Run(Message):
    """To the engine: answer this request next. ``number`` names it from now on."""

    number: int
    request: Request
    grammar: str | None = None


class Cancel(Message):
    """To the engine: stop that request within one token. One that has ended is not an error."""

    number: int


class Loading(Message):
    """From the engine: how far the loading has come; ``label`` says of what."""

    label: str
    done_bytes: int
    total_bytes: int


class Note(Message):
    """From the engine: a line that whoever started it should read."""

    text: str


class Ready(Message):
    """From the engine: loaded, and what it is."""

    name: str
    context: int
    bytes_per_token: int
    caches: int


class Broken(Message):
    """From the engine: it could not load; ``kind`` is the name of the error's class. The process ends."""

    kind: str
    message: str
    hint: str


class Started(Message):
    """From the engine: a request's turn has come."""

    number: int
    cached_tokens: int


class Tokens(Message):
    """From the engine: so many tokens have been written to the ring since the process began."""

    written: int


class Ended(Message):
    """From the engine: a request is over. ``start_ns``: when the target took it up, on the target's clock."""

    number: int
    finish: Finish
    start_ns: int


class Refused(Message):
    """From the engine: a request that cannot be run as it is; the engine is well."""

    number: int
    message: str
    hint: str


class Failed(Message):
    """From the engine: the target failed at a request. The process ends, for another to take its place."""

    number: int
    message: str
    hint: str


ToEngine = Run | Cancel
FromEngine = Loading | Note | Ready | Broken | Started | Tokens | Ended | Refused | Failed

_encoder = msgspec.msgpack.Encoder()
TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of messages, wherever the pieces in which it arrives end."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, data: bytes) -> Iterator[bytes]:
        held, place = self._held, 0
        held += data
        while len(held) - place >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, place)
            if length > MAX_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = place + _LENGTH.size + length
            if len(held) < end:
                break
            yield bytes(held[place + _LENGTH.size : end])
            place = end
        del held[:place]


def receive(pipe: socket.socket) -> Iterator[ToEngine]:
    """The supervisor's messages as they come, until it closes the pipe or dies."""
    frames = Frames()
    while data := pipe.recv(1 << 16):
        yield from map(TO_ENGINE.decode, frames.push(data))
