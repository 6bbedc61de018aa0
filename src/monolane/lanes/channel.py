"""Messages between the processes of lanes: JSON objects with file descriptors, over a Unix socket."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
MOST_BYTES = 1 << 28  # of a message: a longer one is no message of ours
MOST_FILES = 200  # of a message; Linux allows 253
PIECE_BYTES = 1 << 20  # of a message that are received at once, at most


class Channel:
    """One end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._bytes = bytearray()  # of the next message, as far as it has come; never of the one after it
        self._files: list[int] = []  # that came with it
        self._ended = False  # the other process has closed its end or is dead, or what it sends is no message

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """The other process gets copies of the descriptors ``files``."""
        body = json.dumps(message).encode()
        data = _LENGTH.pack(len(body)) + body
        sent = socket.send_fds(self._socket, [data], list(files))
        self._socket.sendall(data[sent:])

    def fileno(self) -> int:
        """So that several channels can be waited for at once."""
        return self._socket.fileno()

    def has_message(self, wait_s: float) -> bool:
        """Whether a whole message has come, or the end, within so many seconds. Of a process that was stopped while it
        sent, half a message may have come."""
        end_s = time.monotonic() + wait_s
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while self._is_partial():
            if not poll.poll(1000 * max(0.0, end_s - time.monotonic())):
                return False
            self._take()
        return True

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for the next message and its descriptors; None where the other process has closed its end or is dead."""
        while self._is_partial():
            self._take()
        if self._ended:
            return None
        message: dict[str, Any] = json.loads(self._bytes[_LENGTH.size :])
        files, self._files = self._files, []
        self._bytes.clear()
        return message, files

    def close(self) -> None:
        self._socket.close()

    def _is_partial(self) -> bool:
        """Whether more of the next message may come."""
        return not self._ended and self._missing() > 0

    def _missing(self) -> int:
        """Bytes of the next message that have not come, as far as it is known."""
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        (length,) = _LENGTH.unpack_from(self._bytes)
        return int(length) + _LENGTH.size - len(self._bytes)

    def _take(self) -> None:
        """Receive some of the next message; wait where nothing of it is there."""
        try:
            part, files, _, _ = socket.recv_fds(self._socket, min(self._missing(), PIECE_BYTES), MOST_FILES)
        except ConnectionError:
            part, files = b"", []
        self._bytes += part
        self._files += files
        if not part or self._missing() > MOST_BYTES:
            self._ended = True


def close_files(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
