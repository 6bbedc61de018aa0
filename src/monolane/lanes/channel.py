"""Messages between the processes of lanes: JSON objects with file descriptors, over a Unix socket."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
MOST_BYTES = 1 << 28  # of a message: a longer one is no message of ours
MOST_FILES = 200  # of a message; Linux allows 253


class Channel:
    """One end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """The other process gets copies of the descriptors ``files``."""
        body = json.dumps(message).encode()
        socket.send_fds(self._socket, [_LENGTH.pack(len(body))], list(files))
        self._socket.sendall(body)

    def fileno(self) -> int:
        """So that several channels can be waited for at once."""
        return self._socket.fileno()

    def has_message(self, wait_s: float) -> bool:
        """Whether a message has come, or the end, within so many seconds."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors; None where the other process has closed its end or is dead."""
        try:
            head, files, _, _ = socket.recv_fds(self._socket, _LENGTH.size, MOST_FILES)
            head += self._read(_LENGTH.size - len(head))
            (length,) = _LENGTH.unpack(head)
            if length > MOST_BYTES:
                raise EOFError
            message: dict[str, Any] = json.loads(self._read(length))
        except (EOFError, ConnectionError):
            return None
        return message, files

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


def close_files(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
