"""Processes that this one starts, and what they begin with. Each has a channel to the one that has started it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

from monolane.lanes.channel import Channel
from monolane.lanes.memory import SharedMemory, received


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module of ours. -P: nothing is imported from the user's folder."""
    return sys.executable, "-P", "-m", name


class Child:
    """A process that runs a command, which gets the descriptor of its end of the channel as an argument."""

    def __init__(self, command: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in the terminal is for the first process alone
            )
        self.channel = Channel(ours)

    def end(self, wait_s: float) -> str | None:
        """How the process has ended, within so many seconds; None where it has not."""
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def begin() -> tuple[Channel, dict[str, Any], dict[str, SharedMemory]] | None:
    """In such a process: its channel, and the first message with the memory that came with it. None where the other
    process has ended before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when this one ends
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    setup = channel.receive()
    return (channel, setup[0], received(setup[0]["sizes"], setup[1])) if setup else None
