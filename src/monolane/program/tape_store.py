"""Keeps tapes in the cache where packing them costs a conversion: tiles in program order, for any number of workers.

A worker's share of a matrix is a run of consecutive tiles of the file, so one file serves a plan for any number of
workers. The file gets its name only when it is complete and on the disk. It can always be made again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from monolane.cache import atomic_write, cache_folder
from monolane.errors import MonolaneError
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.shard import LaneWeights, Shard
from monolane.program.tape import (
    Advance,
    Allocate,
    Bytes,
    Tape,
    allocate_part,
    allocate_tape,
    pack_tape,
    tape_without_weights,
)
from monolane.progress import Progress, bar

FORMAT = 4  # of the file: to be changed when packing or converting changes its content
PART_BYTES = 1 << 30  # of a tape that is copied part by part
PIECE_BYTES = 16 << 20  # of a tape that are read at once, at most, from the file that was kept
KEPT = 3  # models whose tapes are kept, one of each lane: the most recently used ones
SPARE_BYTES = 4 << 30  # of the disk that stay free: a kept tape only saves time
ABANDONED_S = 3600.0  # a temporary file that is older was left by a process that was killed


def load_lanes(
    plan: Plan, weights: Weights, config: ModelConfig, allocate: Allocate, progress: Progress, spare: int = 0
) -> tuple[Tape, ...]:
    """The tapes of all lanes of a plan. The first has the embedding table. ``spare``: processors that packing leaves to
    others."""
    sources = lane_sources(plan, weights, config)
    tapes = [allocate_tape(plan, source, allocate, has_table=lane == 0) for lane, source in enumerate(sources)]
    with bar(progress, sum(_size(tape) for tape in tapes), "loading"):
        for tape, source in zip(tapes, sources, strict=True):
            with _Keeper(plan, _size(tape), source) as keeper:
                keeper.fill(tape, progress, partial(pack_tape, tape, source, progress.advance, spare))
    return tuple(tapes)


class Packing(Protocol):
    """Packs the parts of tapes, one after the other."""

    def memory(self) -> Allocate:
        """Memory for a part. That of the part before last may be taken again, because the last one is still copied."""

    def pack(self, lane: int, part: Tape, weights: Weights, advance: Advance) -> None: ...


class PackingThreads:
    """``pack_tape``, in memory of this process."""

    def __init__(self) -> None:
        self._arrays: list[Bytes] = []  # of the next part
        self._others: list[Bytes] = []

    def memory(self) -> Allocate:
        numbers, arrays = itertools.count(), self._arrays
        self._arrays, self._others = self._others, arrays

        def allocate(size: int) -> Bytes:
            number = next(numbers)
            if number == len(arrays):
                arrays.append(np.empty(size, np.uint8))
            elif arrays[number].nbytes < size:
                arrays[number] = np.empty(size, np.uint8)
            return arrays[number][:size]

        return allocate

    def pack(self, lane: int, part: Tape, weights: Weights, advance: Advance) -> None:
        pack_tape(part, weights, advance)


def stream_lanes(
    plan: Plan,
    weights: Weights,
    config: ModelConfig,
    deliver: Callable[[int, Tape], None],
    progress: Progress,
    packing: Packing,
) -> tuple[Tape, ...]:
    """The tapes of all lanes of a plan, for memory that is not this process's: ``deliver(lane, part)`` copies one part
    of a lane's tape after the other, in a thread of its own, while the next part is packed. So no more than two times
    PART_BYTES or two projections are here at a time. Returns of every lane what is left: its constants, and of the
    first the table."""
    sources = lane_sources(plan, weights, config)
    left = [tape_without_weights(plan, source, _zeros, has_table=lane == 0) for lane, source in enumerate(sources)]
    size = len(left) * plan.resident_bytes + sum(_size(tape) for tape in left)
    with bar(progress, size, "loading"), ThreadPoolExecutor(1, "deliver") as deliverer:
        delivering: Future[None] | None = None
        for lane, (tape, source) in enumerate(zip(left, sources, strict=True)):
            with _Keeper(plan, plan.resident_bytes + _size(tape), source) as keeper:
                for stages in parts(plan):
                    part = allocate_part(tape, stages, packing.memory())
                    keeper.fill(part, progress, partial(packing.pack, lane, part, source, progress.advance))
                    if delivering:
                        delivering.result()
                    delivering = deliverer.submit(deliver, lane, part)
                keeper.fill(tape, progress, partial(pack_tape, tape, source, progress.advance))  # the table
        if delivering:
            delivering.result()
    return tuple(left)


def lane_sources(plan: Plan, weights: Weights, config: ModelConfig) -> list[Weights]:
    """The weights of every lane."""
    lanes = plan.program.lanes
    shard = Shard(config, lanes)
    return [LaneWeights(weights, shard, lane) for lane in range(lanes)] if lanes > 1 else [weights]


def parts(plan: Plan) -> Iterator[range]:
    """Consecutive projections that have no more than PART_BYTES, or one that has more."""
    first = size = 0
    for index in range(len(plan.program.projections)):
        more = sum(tape[index].size for tape in plan.segments)
        if index > first and size + more > PART_BYTES:
            yield range(first, index)
            first, size = index, 0
        size += more
    yield range(first, len(plan.program.projections))


class _Keeper:
    """Fills the parts of a tape in order: from the file that was kept, else from the weights. Then a thread writes the
    file meanwhile. That a file cannot be written is not reported: the next start packs the tape again."""

    def __init__(self, plan: Plan, size: int, weights: Weights) -> None:
        """``size``: bytes of the whole tape with its table."""
        self._path = _path(plan, weights) if weights.converted else None
        self._kept = KEPT * plan.program.lanes
        self._reads = bool(self._path and self._path.exists() and self._path.stat().st_size == size)
        self._keeps = self._path is not None and _has_room(size)
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        # Its thread is no daemon: a program that ends right away waits for it, and leaves a complete file.
        self._writer = ThreadPoolExecutor(1, "keep tape")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writing:
            self._writer.submit(self._end, *error)
        self._writer.shutdown(wait=error[0] is not None)

    def fill(self, part: Tape, progress: Progress, pack: Callable[[], None]) -> None:
        """``pack`` fills the part from the weights."""
        if self._writing:
            self._writing.result()  # memory is taken again: at the latest that of the part before last
        pieces = sorted(_pieces(part), key=lambda piece: piece[0])
        if self._path and self._reads and _read(self._path, pieces, progress):
            self._keeps = False
            return
        self._reads = False
        pack()
        if self._path and self._keeps:
            self._writing = self._writer.submit(self._write, self._path, pieces)

    def _write(self, path: Path, pieces: list[tuple[int, Bytes]]) -> None:
        try:
            if self._file is None:
                _make_room(path.parent, self._kept)
                self._file = self._stack.enter_context(atomic_write(path))
            for _, piece in pieces:
                self._file.write(piece.data)
        except (OSError, MonolaneError) as error:
            self._keeps = False
            self._end(type(error), error, None)

    def _end(self, *error: Any) -> None:
        """Gives the file its name, or deletes it where there was an error."""
        with suppress(OSError, MonolaneError):
            self._stack.__exit__(*error)


def _size(tape: Tape) -> int:
    return sum(piece.nbytes for _, piece in _pieces(tape))


def _pieces(tape: Tape) -> Iterator[tuple[int, Bytes]]:
    """(offset in the file, bytes of the tape), in pieces of at most PIECE_BYTES."""
    plan, base = tape.plan, 0
    for index, stage in enumerate(plan.program.projections):
        tile_bytes = plan.layout.tile_bytes(stage)
        expert_bytes = plan.layout.tiles(stage) * tile_bytes
        for worker in range(plan.workers if index in tape.stages else 0):
            place = base + plan.segments[worker][index].first_tile * tile_bytes
            for expert, part in enumerate(tape.experts(worker, index)):
                yield from _cut(place + expert * expert_bytes, part)
        base += stage.matrix.experts * expert_bytes
    if tape.table is not None:
        yield from _cut(base, tape.table.reshape(-1))


def _cut(place: int, part: Bytes) -> Iterator[tuple[int, Bytes]]:
    for start in range(0, part.nbytes, PIECE_BYTES):
        yield place + start, part[start : start + PIECE_BYTES]


def _read(path: Path, pieces: list[tuple[int, Bytes]], progress: Progress) -> bool:
    """Fill the tape from its file. Returns False where the file cannot be read to its end."""

    def read(place: int, piece: Bytes) -> int:
        done = 0
        while done < piece.nbytes:
            count = os.preadv(file.fileno(), [piece[done:].data], place + done)
            if count == 0:
                raise EOFError(path)
            done += count
        return done

    try:
        with path.open("rb") as file, ThreadPoolExecutor(os.cpu_count() or 1, "read tape") as pool:
            for done in pool.map(lambda piece: read(*piece), pieces):
                progress.advance(done)
        path.touch()  # its time of modification is the time of its last use
    except (OSError, EOFError):
        return False
    return True


def _make_room(folder: Path, kept: int) -> None:
    """Delete all but the most recently used tapes, and temporary files that a killed process has left."""
    files = sorted(folder.glob("*.tiles"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in files[kept - 1 :]:
        old.unlink()
    for left in folder.glob(".*.tmp"):
        if time.time() - left.stat().st_mtime > ABANDONED_S:
            left.unlink()


def _has_room(size: int) -> bool:
    folder = cache_folder("tapes")
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free > size + SPARE_BYTES


def _path(plan: Plan, weights: Weights) -> Path:
    """One file per model (Weights.identity), layout and shapes of the matrices."""
    program = plan.program
    shape = repr((FORMAT, plan.layout, [stage.matrix for stage in program.projections], program.table))
    source = hashlib.sha256(weights.identity.encode()).hexdigest()[:24]
    return cache_folder("tapes") / f"{source}.{hashlib.sha256(shape.encode()).hexdigest()[:16]}.tiles"


def _zeros(size: int) -> Bytes:
    return np.zeros(size, np.uint8)
