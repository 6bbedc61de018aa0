"""What a CPU gives: reading by more and more threads, what meeting costs them, and how long they take to wake."""

from __future__ import annotations

import ctypes
import time
from ctypes import c_double, c_int64
from statistics import median

from monolane.bench.ceiling.read_cpu import ReadCeiling, compiled
from monolane.bench.ceiling.result import BARRIER, HANDOFF, Ceiling, Host, Read, Wait
from monolane.errors import TargetError
from monolane.target.cpu.machine import processors, vector_level

REPEATS = 3
ROUNDS = 2000
PIECE_BYTES = 256 << 10  # that each thread reads between two meetings: some 20 µs
WAKES = 50
DEADLINE_S = 5.0  # of one measurement
NOTHING, KINDS = 0, {HANDOFF: 1, BARRIER: 2}  # as in csrc/handoff.cpp

METHOD = (
    "pinned threads, one a core; reading: the best of plain and prefetched 64-byte loads over a buffer each, best of "
    f"{REPEATS}; hand-off: each publishes a tagged word and reads all, barrier: one counter, mean of {ROUNDS:,}; idle: "
    f"nothing else; streaming: what they add to reading {PIECE_BYTES >> 10} KiB between two, median of {REPEATS}; "
    "starting: from waking sleeping threads until the last is awake, median; there and back: a word between two threads"
)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})


def measure() -> Ceiling:
    began = time.monotonic()
    workers = len(processors())
    reader = ReadCeiling(workers)
    reads = [
        Read(_threads(count), max(reader.measure(count) for _ in range(REPEATS))) for count in thread_counts(workers)
    ]
    meetings = Meetings(reader)
    waits = [meetings.wait(what, streaming) for what in KINDS for streaming in (0, PIECE_BYTES)]
    launch, trip = meetings.wake_us(), meetings.round_trip_us()
    return Ceiling(
        device=f"cpu ({workers} x {vector_level().name})",
        workers=workers,
        reads=reads,
        waits=waits,
        host=Host(launch_us=launch, launch_to_end_us=None, round_trip_us=trip),
        streaming="read by each between two",
        seconds=time.monotonic() - began,
    )


class Meetings:
    """Threads that wait for each other."""

    def __init__(self, reader: ReadCeiling) -> None:
        self._library = compiled("handoff.cpp")
        self._library.monolane_meet_seconds.restype = c_double
        self._library.monolane_ping_seconds.restype = c_double
        self._library.monolane_wake_seconds.restype = ctypes.c_bool
        self._buffers = reader.buffers

    def wait(self, what: str, piece_bytes: int) -> Wait:
        """Idle: the time of a round. Streaming: what it adds to a round that only reads."""
        if not piece_bytes:
            return Wait(what, 0, min(self._us(KINDS[what], 0) for _ in range(REPEATS)))
        alone, together = [], []
        for _ in range(REPEATS):
            alone.append(self._us(NOTHING, piece_bytes))
            together.append(self._us(KINDS[what], piece_bytes))
        added = median(more - less for more, less in zip(together, alone, strict=True))
        speed = self._buffers.threads * piece_bytes / (median(together) * 1e-6)
        return Wait(what, piece_bytes, max(added, 0.0), speed)  # below 0 is noise

    def wake_us(self) -> float:
        seconds = (c_double * WAKES)()
        have = self._buffers
        if not self._library.monolane_wake_seconds(have.threads, have.processors, WAKES, c_double(DEADLINE_S), seconds):
            raise _too_slow()
        return float(median(seconds)) * 1e6

    def round_trip_us(self) -> float | None:
        """None where there is only one processor."""
        if self._buffers.threads < 2:
            return None
        seconds = self._library.monolane_ping_seconds(self._buffers.processors, ROUNDS, c_double(DEADLINE_S))
        return _positive(seconds) * 1e6

    def _us(self, kind: int, piece_bytes: int) -> float:
        """Of a round."""
        have = self._buffers
        seconds = self._library.monolane_meet_seconds(
            kind,
            have.threads,
            have.processors,
            ROUNDS,
            have.addresses,
            c_int64(have.size),
            c_int64(piece_bytes),
            c_double(DEADLINE_S),
            have.sink,
        )
        return _positive(seconds) / ROUNDS * 1e6


def _positive(seconds: float) -> float:
    if seconds < 0:
        raise _too_slow()
    return seconds


def _too_slow() -> TargetError:
    return TargetError(
        f"Threads waited for each other longer than {DEADLINE_S:g} s.", "End other programs that use all processors."
    )


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
