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


def test_half_a_message_is_none_yet() -> None:
    """Nobody may wait for the rest of it: the process that sends it may have been stopped."""
    ours, theirs = socket.socketpair()
    channel, message, (passed, other) = Channel(theirs), b'{"a": 1}', os.pipe()
    socket.send_fds(ours, [len(message).to_bytes(8, "little")], [passed])
    assert not channel.has_message(0.05)
    ours.sendall(message[:3])
    assert not channel.has_message(0)
    ours.sendall(message[3:] + (2).to_bytes(8, "little"))
    assert channel.has_message(0)
    received = channel.receive()
    assert received is not None
    assert received[0] == {"a": 1}
    assert not channel.has_message(0)
    ours.sendall(b"{}")
    assert channel.receive() == ({}, [])
    os.write(other, b"x")
    assert os.read(received[1][0], 1) == b"x"


@pytest.mark.parametrize(
    "sent", [b"\x01\x00", (MOST_BYTES + 1).to_bytes(8, "little"), (5).to_bytes(8, "little") + b"{"]
)
def test_half_a_message_or_none_of_ours_is_an_end(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(sent)
    ours.close()
    assert Channel(theirs).receive() is None
