"""The process of one lane: it runs the requests of lane 0, for which the first process asks it (lane_processes.py)."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from monolane.lanes.channel import Channel
from monolane.lanes.child import begin
from monolane.lanes.memory import SharedMemory, received
from monolane.program.sample import Sampling
from monolane.target.base import Request
from monolane.target.lane_processes import Answer


class Follower(Protocol):
    """The kernel of one lane. It runs the requests of lane 0, and gives its tokens to nobody."""

    def ready(self) -> Answer:
        """What the first process must know of it, with descriptors."""

    def meet(self, answer: Answer) -> None:
        """Learn from the first process what the other lanes have said of themselves, where they have."""

    def start(self, request: Request, all_logits: bool, number: int) -> None: ...

    def finish(self, stuck: Callable[[dict[str, int]], None]) -> None:
        """Return when the request has ended. ``stuck`` is called with a report where this lane found itself stuck."""

    def give(self, logits: SharedMemory) -> None:
        """Leave this lane's share of all logits there, where the first lane does not have them."""

    def stamp(self, kernel: bytes, stages: int, first: int, passes: int, waits: SharedMemory) -> None:
        """Measure in the next request how long each worker waits for other lanes, as ``LaneProcesses.stamp``."""

    def copy(self, source: int, destination: int, tokens: int) -> None: ...

    def leave(self) -> None:
        """The process is about to end, perhaps in the middle of a request."""


def main() -> None:
    setup = begin()
    if setup is None:
        return
    channel, values, pieces = setup
    follower = _follower(values, pieces)
    messages: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=[channel, messages, follower], daemon=True).start()
    said, shared = follower.ready()
    channel.send({"is": "ready"} | said, shared)
    while True:
        _answer(channel, follower, messages.get())


def _follower(values: dict[str, Any], pieces: Mapping[str, SharedMemory]) -> Follower:
    if values["target"] == "cuda":
        from monolane.target.cuda.follower import CudaFollower

        return CudaFollower(values, pieces)
    from monolane.target.cpu.follower import CpuFollower

    return CpuFollower(values, pieces)


def _answer(channel: Channel, follower: Follower, asked: Answer) -> None:
    message, files = asked
    if "copy" in message:
        follower.copy(*message["copy"])
        channel.send({"is": "copied"})
    elif "stamp" in message:
        pieces = received(message["sizes"], files)
        stages, first, passes = message["stamp"]
        follower.stamp(pieces["kernel"].array.tobytes(), stages, first, passes, pieces["waits"])
        channel.send({"is": "stamped"})
    elif "lanes" in message:
        follower.meet(asked)
        channel.send({"is": "met"})
    else:
        pieces = received(message["sizes"], files)
        follower.start(_request(message["run"]), message["all_logits"], message["number"])
        channel.send({"is": "started"})
        follower.finish(lambda report: channel.send({"is": "stuck", "report": report}))
        if "logits" in pieces:
            follower.give(pieces["logits"])
        channel.send({"is": "ended"})


def _request(values: dict[str, Any]) -> Request:
    sampling = values["sampling"]
    biases = tuple((token, value) for token, value in sampling["logit_bias"])
    return Request(**values | {"sampling": Sampling(**sampling | {"logit_bias": biases})})


def _receive(channel: Channel, messages: queue.SimpleQueue[Answer], follower: Follower) -> None:
    while (message := channel.receive()) is not None:
        messages.put(message)
    follower.leave()
    os._exit(0)  # the first process has closed the channel, or is dead


if __name__ == "__main__":
    main()
