"""The ceiling of a CPU: read bandwidth by number of threads, the cost of hand-offs and barriers, and wake-up times."""

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
ROUNDS = 2000  # hand-offs or barriers of one measurement
PIECE_BYTES = 256 << 10  # that each thread reads between two hand-offs while memory streams: some 20 µs
WAKES = 50
DEADLINE_S = 5.0  # of one measurement
NOTHING, KINDS = 0, {HANDOFF: 1, BARRIER: 2}  # enum Kind of csrc/handoff.cpp

METHOD = (
    "pinned threads, one per core; reading: every thread reads its own buffer with 64-byte loads, the best of plain "
    f"loads and several prefetch distances, best of {REPEATS}; hand-off: every thread publishes a tagged word and "
    f"reads those of all threads, barrier: one counter, mean of {ROUNDS:,}; idle: the threads do nothing else; "
    f"streaming: every thread reads {PIECE_BYTES >> 10} KiB between two hand-offs or barriers, and the time that these "
    f"add to the reading counts, median of {REPEATS}; starting: from waking sleeping threads until the last is awake, "
    "median; there and back: the round trip of a word between two threads"
)


def thread_counts(most: int) -> list[int]:
    """The powers of two below ``most``, and ``most`` itself."""
    return sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})


def measure() -> Ceiling:
    """Measure everything that ``monolane ceiling`` reports of a CPU."""
    began = time.monotonic()
    workers = len(processors())
    reader = ReadCeiling(workers)
    reads = [
        Read(_threads(count), max(reader.measure(count) for _ in range(REPEATS))) for count in thread_counts(workers)
    ]
    threads = ThreadSync(reader)
    waits = [threads.wait(what, streaming) for what in KINDS for streaming in (0, PIECE_BYTES)]
    launch, trip = threads.wake_us(), threads.round_trip_us()
    return Ceiling(
        device=f"cpu ({workers} x {vector_level().name})",
        workers=workers,
        reads=reads,
        waits=waits,
        host=Host(launch_us=launch, launch_to_end_us=None, round_trip_us=trip),
        streaming="read by each between two",
        seconds=time.monotonic() - began,
    )


class ThreadSync:
    """Measures how long pinned threads take to synchronise and to wake up, with the library of csrc/handoff.cpp."""

    def __init__(self, reader: ReadCeiling) -> None:
        self._library = compiled("handoff.cpp")
        self._library.monolane_sync_seconds.restype = c_double
        self._library.monolane_ping_seconds.restype = c_double
        self._library.monolane_wake_seconds.restype = ctypes.c_bool
        self._buffers = reader.buffers

    def wait(self, what: str, piece_bytes: int) -> Wait:
        """The time of one hand-off or barrier. With ``piece_bytes`` of reading in each round, it is the difference to
        rounds that only read."""
        if not piece_bytes:
            return Wait(what, 0, min(self._us(KINDS[what], 0) for _ in range(REPEATS)))
        only_reading, with_sync = [], []
        for _ in range(REPEATS):
            only_reading.append(self._us(NOTHING, piece_bytes))
            with_sync.append(self._us(KINDS[what], piece_bytes))
        added = median(more - less for more, less in zip(with_sync, only_reading, strict=True))
        speed = self._buffers.threads * piece_bytes / (median(with_sync) * 1e-6)
        return Wait(what, piece_bytes, max(added, 0.0), speed)  # a negative difference is noise

    def wake_us(self) -> float:
        """The median time from waking sleeping threads until the last of them is awake."""
        seconds = (c_double * WAKES)()
        have = self._buffers
        if not self._library.monolane_wake_seconds(have.threads, have.processors, WAKES, c_double(DEADLINE_S), seconds):
            raise _too_slow()
        return float(median(seconds)) * 1e6

    def round_trip_us(self) -> float | None:
        """The mean round trip of a word between two threads; None where there is only one processor."""
        if self._buffers.threads < 2:
            return None
        seconds = self._library.monolane_ping_seconds(self._buffers.processors, ROUNDS, c_double(DEADLINE_S))
        return _positive(seconds) * 1e6

    def _us(self, kind: int, piece_bytes: int) -> float:
        """The mean time of one round in µs."""
        have = self._buffers
        seconds = self._library.monolane_sync_seconds(
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
