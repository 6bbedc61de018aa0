"""The process of one lane: it runs the requests of lane 0, for which the first process asks it (lane_processes.py)."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from monolane.errors import EngineFailedError
from monolane.lanes.channel import Channel, close_files
from monolane.lanes.memory import SharedMemory
from monolane.program.sample import Sampling
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cpu import native
from monolane.target.cpu.runtime import POLL_MS, Cache, CacheShape


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when this one ends
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    received = channel.receive()
    if received is None:
        return
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    follower = _Follower(*received)
    threading.Thread(target=_receive, args=[channel, messages], daemon=True).start()
    channel.send({"is": "ready"})
    while True:
        message = messages.get()
        if "copy" in message:
            follower.copy(*message["copy"])
            channel.send({"is": "copied"})
        else:
            follower.start(message["run"], message["all_logits"])
            channel.send({"is": "started"})
            follower.finish()
            channel.send({"is": "ended"})


def _receive(channel: Channel, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    while (received := channel.receive()) is not None:
        messages.put(received[0])
    os._exit(0)  # the first process has closed the channel, or is dead


class _Follower:
    """The kernel of one lane. It runs the requests of lane 0, and gives its tokens to nobody."""

    def __init__(self, setup: dict[str, Any], files: list[int]) -> None:
        pieces = [SharedMemory(file, size) for file, size in zip(files, setup["sizes"], strict=True)]
        close_files(files)
        shared, segments, constants, *rest = pieces
        table = rest.pop(0).array if setup["has_table"] else None
        lane = native.LaneMemory([part.array for part in rest], constants.array.view(np.float32))
        count = segments.size // ctypes.sizeof(structs.Segment)
        place = native.Place(setup["threads"], setup["processors"], setup["lane"], shared.address)
        self._setup = native.make_setup(
            [lane],
            (structs.Segment * count).from_buffer_copy(segments.array.tobytes()),
            table,
            setup["context"],
            place,
            setup["deadline_s"],
        )
        self._memory = pieces
        self._caches = [Cache(CacheShape(**setup["cache"])) for _ in range(setup["caches"])]
        self._library = native.Library(Path(setup["library"]))
        self._engine = self._library.open(self._setup)
        self._request: native.Arguments | None = None

    def start(self, values: dict[str, Any], all_logits: bool) -> None:
        sampling = values["sampling"]
        biases = tuple((token, value) for token, value in sampling["logit_bias"])
        request = Request(**values | {"sampling": Sampling(**sampling | {"logit_bias": biases})})
        # Lane 0 alone writes logits; here they only say that nothing is sampled.
        self._request = native.make_request(request, np.empty(1, np.float32) if all_logits else None)
        cache = self._caches[request.cache].struct
        if not self._library.start(self._engine, self._request, cache, native.NO_TRACE):
            raise EngineFailedError("The lane has not ended its last request.")

    def finish(self) -> None:
        """Return when the request has ended."""
        while (status := self._library.status(self._engine)) == structs.Status.RUNNING:
            self._library.wait(self._engine, sys.maxsize, POLL_MS)
        if status == structs.Status.STUCK:
            threading.Event().wait()  # lane 0 has reported it, and asks for nothing more; it ends this process

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self._caches[destination].take(self._caches[source], tokens)


if __name__ == "__main__":
    main()
