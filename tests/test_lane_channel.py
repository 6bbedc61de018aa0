"""The channel between the processes of lanes: whole messages of any length, with their descriptors."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from monolane.lanes.channel import MOST_BYTES, Channel
from monolane.lanes.memory import SharedAllocator, SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs descriptors of Linux")


def test_messages_and_memory_arrive() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    allocator = SharedAllocator()
    array = allocator.allocate(1000)
    sent = {"tokens": list(range(300_000))}  # more than a socket's buffer
    sending = threading.Thread(target=lambda: (ours.send(sent, [allocator.memory_of(array).file]), ours.send({}, [])))
    sending.start()
    received = theirs.receive()
    assert received is not None
    message, (file,) = received
    assert message == sent
    assert theirs.receive() == ({}, [])
    sending.join(20)
    other = SharedMemory(file, 1000)
    array[:] = 7
    assert (other.array == 7).all()
    allocator.close_files()
    other.array[3] = 9
    assert array[3] == 9
    assert allocator.copy_of(np.arange(5, dtype=np.float32)).array.view(np.float32).tolist() == [0, 1, 2, 3, 4]
    ours.close()
    assert theirs.receive() is None


@pytest.mark.parametrize(
    "sent", [b"\x01\x00", (MOST_BYTES + 1).to_bytes(8, "little"), (5).to_bytes(8, "little") + b"{"]
)
def test_half_a_message_or_none_of_ours_is_an_end(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(sent)
    ours.close()
    assert Channel(theirs).receive() is None
