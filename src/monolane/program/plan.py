"""A program divided among N workers: which worker owns which tiles of each matrix, and where they lie on its tape."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monolane.program.layout import Layout
from monolane.program.stage import Output, Program


@dataclass(frozen=True)
class Segment:
    """One worker's share of one matrix: consecutive tiles at a place on its tape. Offsets and sizes in bytes."""

    stage: int  # index into the program's projections
    first_tile: int
    tiles: int  # of each expert, where the matrix has several; all tiles of an expert follow each other on the tape
    offset: int
    size: int  # of all experts


@dataclass(frozen=True)
class Plan:
    """``segments[worker][stage]``: every worker has a segment for every projection; it may be empty.

    ``stream_owners``: the first so many workers own the residual stream and, but for the head, nothing else, so that
    they work in every other stage. 0: the stream is divided among all workers.
    """

    program: Program
    layout: Layout
    workers: int
    segments: tuple[tuple[Segment, ...], ...]
    stream_owners: int = 0

    @cached_property
    def tape_bytes(self) -> tuple[int, ...]:
        """What each worker has in memory."""
        return tuple(sum(segment.size for segment in tape) for tape in self.segments)

    @cached_property
    def streamed_bytes(self) -> tuple[int, ...]:
        """What each worker reads for one decoded token: of a matrix with experts, those that are chosen."""
        chosen = [(stage.chosen, stage.matrix.experts) for stage in self.program.projections]
        return tuple(sum(s.size * chosen[s.stage][0] // chosen[s.stage][1] for s in tape) for tape in self.segments)

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights that all workers together have in memory."""
        return sum(self.tape_bytes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that all workers together stream for one decoded token."""
        return sum(self.streamed_bytes)

    def owners(self, stage: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(worker, its first tile, its last tile + 1) of tiles [first, last) of a projection."""
        begins = self._begins[stage]
        worker = bisect_right(begins, first) - 1
        while worker < self.workers and begins[worker] < last:
            segment = self.segments[worker][stage]
            start, stop = max(first, segment.first_tile), min(last, segment.first_tile + segment.tiles)
            if start < stop:
                yield worker, start, stop
            worker += 1

    @cached_property
    def _begins(self) -> tuple[tuple[int, ...], ...]:
        """The first tile of every worker: [projection][worker]"""
        return tuple(tuple(segment.first_tile for segment in column) for column in zip(*self.segments, strict=True))

    def locate(self, stage: int, tile: int) -> tuple[int, int]:
        """(worker, byte offset on its tape) of one tile of a projection."""
        for worker, _, _ in self.owners(stage, tile, tile + 1):
            segment = self.segments[worker][stage]
            return worker, segment.offset + (tile - segment.first_tile) * (segment.size // segment.tiles)
        raise IndexError(f"stage {stage} has no tile {tile}")


def make_plan(
    program: Program,
    layout: Layout,
    workers: int,
    run_ahead: int = 0,
    matrix_overhead: int = 0,
    attending: int = 0,
    stream_owners: int = 0,
) -> Plan:
    """Divide every matrix into runs of tiles, one per worker, so that what workers stream stays equal from stage to
    stage. Of a matrix with experts every worker has the same tiles of each expert, so any choice is as even.

    The matrices that write the residual stream are all divided in the same way, so that each row of the stream has one
    owner for the whole pass. The other matrices level what that leaves uneven: in each of them a worker may get one
    tile more than an equal share, rounded up, where a tile has at most ``run_ahead`` bytes.

    The first ``attending`` workers attend to a short context, and begin the matrix behind attention later than others.
    If equal shares of the residual stream, rounded up, leave over no more workers than that, they are the first ones.

    With ``stream_owners`` the first so many workers have the matrices that write the residual stream, the others have
    the rest, and all share the head. Then no worker has a part of two stages in a row.

    The rows of a router, where there are not enough for all workers, are those of the last ones: of other workers than
    attend, and of the same ones in every layer.

    Where a stage has several matrices, a worker multiplies its tiles of one after those of the other. Each matrix but
    the first takes as long as streaming ``matrix_overhead`` bytes more. Where an uneven division costs less than that,
    the workers are divided among the matrices, and each has tiles of one only.
    """
    if workers < 1:
        raise ValueError("a plan needs at least one worker")
    if not 0 <= stream_owners < workers:
        raise ValueError("a plan needs a worker that owns nothing of the residual stream")
    ends, loads = [0] * workers, [0] * workers  # bytes on the tape so far, and of these what a token streams
    segments: list[list[Segment]] = [[] for _ in range(workers)]
    residual_counts: dict[int, list[int]] = {}
    divided = _divided(program, layout, workers, matrix_overhead)
    for index, stage in enumerate(program.projections):
        tiles, tile_bytes = layout.tiles(stage), layout.tile_bytes(stage)
        if stream_owners and stage.output is Output.RESIDUAL:
            counts = _even(tiles, stream_owners) + [0] * (workers - stream_owners)
        elif stream_owners and stage.output is not Output.LOGITS:
            counts = [0] * stream_owners + _level(tiles, loads[stream_owners:], stage.chosen * tile_bytes, run_ahead)
        elif stage.output is Output.RESIDUAL:
            counts = residual_counts.setdefault(tiles, _residual(tiles, workers, attending))
        elif stage.routes and tiles <= workers:
            counts = [0] * (workers - tiles) + [1] * tiles
        elif index in divided:
            counts = divided[index]
        else:
            counts = _level(tiles, loads, stage.chosen * tile_bytes, run_ahead)
        first = 0
        for worker, count in enumerate(counts):
            size = stage.matrix.experts * count * tile_bytes
            segments[worker].append(Segment(index, first, count, ends[worker], size))
            ends[worker] += size
            loads[worker] += stage.chosen * count * tile_bytes
            first += count
    return Plan(program, layout, workers, tuple(tuple(tape) for tape in segments), stream_owners)


def _divided(program: Program, layout: Layout, workers: int, matrix_overhead: int) -> dict[int, list[int]]:
    """Tiles per worker of the projections whose stage is divided so that each worker has tiles of one of them."""
    found: dict[int, list[int]] = {}
    for together in program.projections_by_stage:
        stages = [program.projections[index] for index in together]
        if not 1 < len(stages) <= workers or any(stage.output is Output.RESIDUAL for stage in stages):
            continue
        sizes = [(layout.tiles(stage), stage.chosen * layout.tile_bytes(stage)) for stage in stages]
        limit, shares = _shares(sizes, workers)
        if limit >= sum(tiles * size for tiles, size in sizes) / workers + matrix_overhead * (len(stages) - 1):
            continue
        first = 0
        for index, (tiles, _), share in zip(together, sizes, shares, strict=True):
            found[index] = [0] * first + _even(tiles, share) + [0] * (workers - first - share)
            first += share
    return found


def _shares(sizes: list[tuple[int, int]], workers: int) -> tuple[int, list[int]]:
    """Divides workers among matrices of (tiles, bytes of a tile), so that the largest share is as small as possible.
    Returns its bytes, and the workers of each matrix."""
    shares = [1] * len(sizes)

    def largest(matrix: int) -> int:
        tiles, size = sizes[matrix]
        return -(-tiles // shares[matrix]) * size

    for _ in range(workers - len(sizes)):
        shares[max(range(len(sizes)), key=largest)] += 1
    return max(map(largest, range(len(sizes)))), shares


def _even(tiles: int, workers: int) -> list[int]:
    even, left = divmod(tiles, workers)
    return [even + (worker < left) for worker in range(workers)]


def _residual(tiles: int, workers: int, attending: int) -> list[int]:
    """Tiles per worker of a matrix that writes the residual stream."""
    busy = -(-tiles // -(-tiles // workers))  # workers that equal shares, rounded up, are enough for
    spared = workers - busy if workers - busy <= attending else 0
    return [0] * spared + _even(tiles, workers - spared)


def _level(tiles: int, loads: list[int], tile_bytes: int, run_ahead: int) -> list[int]:
    """Tiles per worker. Each tile goes to the worker with the shortest tape, of those that may still get one: a worker
    gets at most an equal share, rounded up, and one tile more where a tile has at most ``run_ahead`` bytes."""
    most = -(-tiles // len(loads)) + (tile_bytes <= run_ahead)
    # How long each worker's tape is when it gets its first tile, its second, and so on; ties go to the first worker.
    lengths = np.add.outer(np.array(loads), tile_bytes * np.arange(most))
    owners = np.argsort(lengths, axis=None, kind="stable")[:tiles] // most
    return [int(count) for count in np.bincount(owners, minlength=len(loads))]
