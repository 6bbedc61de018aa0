"""Packs the tape of every worker: its weights, contiguous, in the order it reads them, in the layout of its target."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import QuantRows, groups_of
from monolane.model.weights import Bf16Bits, Weights
from monolane.program import tiles as lowbit
from monolane.program.plan import Plan
from monolane.program.stage import Arrangement, Matrix, Program, Project, Vector

Bytes = NDArray[np.uint8]
Allocate = Callable[[int], Bytes]  # returns zeroed memory of that many bytes, aligned for the target
Advance = Callable[[int], None]  # called with the number of bytes just packed

# Of tape that one step packs, with up to 2 threads and with more. What a step works on should stay in the processor's
# caches, but threads wait for each other at the interpreter's lock, which every operation of NumPy takes once: with a
# quarter of these sizes 2 threads were no faster than 1, and 16 slower than 2, on two processors. On 16 processors 8
# threads pack 0.8 GB/s of gpt-oss-120b. Which number of threads is best there has not been measured.
PACK_BYTES, PACK_BYTES_OF_MANY = 1 << 20, 4 << 20
MOST_THREADS = 8
KEPT_BYTES = 16 << 20
PENDING = 64  # steps that wait for each thread


@dataclass(frozen=True)
class Constants:
    """Small fp32 vectors (norms, biases) that every worker reads: one array, and the index at which each begins."""

    values: NDArray[np.float32]
    offsets: dict[str, int]

    def vector(self, vector: Vector) -> NDArray[np.float32]:
        start = self.offsets[vector.name]
        return self.values[start : start + vector.size]


@dataclass(frozen=True)
class Tape:
    """All tapes of a plan (one per worker), its constants, and the embedding table where it is not tied to the head:
    [row][bytes of a row], in bf16 or as tiles of one row. A part of the tapes has some consecutive projections only."""

    plan: Plan
    workers: tuple[Bytes, ...]
    constants: Constants
    table: Bytes | None
    stages: range  # the projections that are there, as indices

    @property
    def nbytes(self) -> int:
        table = self.table.nbytes if self.table is not None else 0
        return sum(tape.nbytes for tape in self.workers) + self.constants.values.nbytes + table

    def begin(self, worker: int) -> int:
        """The byte of the worker's whole tape with which its part begins."""
        return self.plan.segments[worker][self.stages[0]].offset if self.stages else 0

    def segment(self, worker: int, stage: int) -> Bytes:
        """One worker's bytes of one projection."""
        place = self.plan.segments[worker][stage]
        begin = place.offset - self.begin(worker)
        return self.workers[worker][begin : begin + place.size]

    def experts(self, worker: int, stage: int) -> Bytes:
        """One worker's bytes of each expert of a projection: [expert][byte]."""
        count = self.plan.program.projections[stage].matrix.experts
        return self.segment(worker, stage).reshape(count, -1)


def empty_tape(plan: Plan) -> Tape:
    """A part of a tape that has nothing, of which other parts can be allocated."""
    return Tape(plan, (), Constants(np.zeros(0, np.float32), {}), None, range(0))


def allocate_tape(plan: Plan, weights: Weights, allocate: Allocate, has_table: bool = True) -> Tape:
    """Allocate a tape and fill in its constants; the weights are still zero. ``has_table``: with the embedding table,
    where the program has one; lanes in one process need only one of them."""
    return allocate_part(tape_without_weights(plan, weights, allocate, has_table), None, allocate)


def tape_without_weights(plan: Plan, weights: Weights, allocate: Allocate, has_table: bool = True) -> Tape:
    """A part of a tape that has no projection: its constants, and the table, which is still zero."""
    program = plan.program
    table = None
    if program.table is not None and has_table:
        shape = (program.table.rows, program.table.format.row_bytes(program.table.cols))
        table = allocate(shape[0] * shape[1]).reshape(shape)
    return Tape(plan, (), pack_constants(program, weights), table, range(0))


def allocate_part(tape: Tape, stages: range | None, allocate: Allocate) -> Tape:
    """A part of a tape with these projections, and without the table; or the whole of it."""
    table = tape.table if stages is None else None
    stages = range(len(tape.plan.program.projections)) if stages is None else stages
    sizes = [sum(segments[index].size for index in stages) for segments in tape.plan.segments]
    return replace(tape, workers=tuple(allocate(size) for size in sizes), table=table, stages=stages)


def pack_tape(tape: Tape, weights: Weights, advance: Advance | None = None, spare: int = 0) -> None:
    """Fill a tape with the model's weights, on all processors but ``spare``, and MOST_THREADS of them at most."""
    # glibc gives larger blocks back to the system when they are freed, and the next ones come page by page: that was
    # more than half of the time. Once a block of this size has been freed, those up to it are kept.
    np.empty(KEPT_BYTES, np.uint8)
    threads = max(1, min(MOST_THREADS, (os.cpu_count() or 1) - spare))
    step_bytes = PACK_BYTES if threads <= 2 else PACK_BYTES_OF_MANY
    with ThreadPoolExecutor(threads, "pack") as pool:
        pending: deque[Future[int]] = deque()  # a model with experts has hundreds of thousands of steps

        def finish(most: int) -> None:
            """Wait until no more than so many steps are pending."""
            while len(pending) > most:
                done = pending.popleft().result()
                if advance:
                    advance(done)

        try:
            for step in packing_steps(tape, weights, step_bytes):
                pending.append(pool.submit(step))
                finish(PENDING * threads)
            finish(0)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def packing_steps(tape: Tape, weights: Weights, step_bytes: int = PACK_BYTES) -> Iterator[Callable[[], int]]:
    """The steps of packing, which are independent of each other; each returns the number of bytes it wrote. A step
    packs consecutive tiles of a matrix, whichever workers have them: of an expert each of many workers may have a tile
    or two."""
    plan, layout = tape.plan, tape.plan.layout
    for index in tape.stages:
        stage = plan.program.projections[index]
        tiles, tile_rows, tile_bytes = layout.tiles(stage), layout.rows(stage), layout.tile_bytes(stage)
        step_tiles = max(1, step_bytes // tile_bytes)
        # Several small experts at once, others one by one: of files that have to be read as a whole only some experts
        # are in memory.
        joins = stage.matrix.is_stacked and stage.matrix.rows % tile_rows == 0
        step_experts = max(1, step_tiles // tiles) if joins else 1
        for expert, first in product(range(0, stage.matrix.experts, step_experts), range(0, tiles, step_tiles)):
            experts = slice(expert, min(expert + step_experts, stage.matrix.experts))
            last = min(first + step_tiles, tiles)

            def pack(
                stage: Project = stage,
                index: int = index,
                experts: slice = experts,
                first: int = first,
                last: int = last,
            ) -> int:
                count = experts.stop - experts.start
                tile_rows, tile_bytes = layout.rows(stage), layout.tile_bytes(stage)
                stop = (count - 1) * stage.matrix.rows + min(last * tile_rows, stage.matrix.rows)
                rows = matrix_rows(stage.matrix, weights, first * tile_rows, stop, experts.start)
                packed = layout.pack(rows, stage).reshape(count, -1)
                for worker, start, end in plan.owners(index, first, last):
                    begin = (start - plan.segments[worker][index].first_tile) * tile_bytes
                    mine = packed[:, (start - first) * tile_bytes : (end - first) * tile_bytes]
                    tape.experts(worker, index)[experts, begin : begin + mine.shape[1]] = mine
                return packed.nbytes

            yield pack
    if tape.table is not None and plan.program.table is not None:
        table, source = tape.table, plan.program.table
        step_rows = max(1, step_bytes // table.shape[1])
        for first in range(0, source.rows, step_rows):

            def copy(first: int = first, last: int = min(first + step_rows, source.rows)) -> int:
                rows = matrix_rows(source, weights, first, last)
                packed = lowbit.pack(rows, 1) if isinstance(rows, QuantRows) else rows.view(np.uint8)
                table[first:last] = packed.reshape(last - first, -1)
                return table[first:last].nbytes

            yield copy


def matrix_rows(matrix: Matrix, weights: Weights, start: int, stop: int, expert: int = 0) -> Bf16Bits | QuantRows:
    """Rows [start, stop) of a program's matrix in its format, gathered from the model's weights."""
    pieces = matrix.part_rows(start, stop, expert)
    if matrix.format.is_low_bit:
        if len(pieces) == 1:
            name, first, last, _ = pieces[0]
            return weights.quants(name, first, last)
        joined = QuantRows.zeros(matrix.format, stop - start, groups_of(matrix.cols))
        for name, first, last, where in pieces:
            joined.put(where, weights.quants(name, first, last))
        return joined
    if len(pieces) == 1:
        name, first, last, _ = pieces[0]
        return weights.rows(name, first, last)
    rows = np.empty((stop - start, matrix.cols), np.uint16)
    for name, first, last, where in pieces:
        rows[where] = weights.rows(name, first, last)
    return rows


def constant_offsets(program: Program) -> tuple[dict[str, int], int]:
    """The index at which each constant vector begins, aligned to a cache line of 16 elements; and their size in all."""
    offsets, size = {}, 0
    for vector in program.vectors():
        offsets[vector.name] = size
        size += -(-vector.size // 16) * 16
    return offsets, size


def pack_constants(program: Program, weights: Weights) -> Constants:
    """All constant vectors in one fp32 array, with zeros as padding."""
    offsets, size = constant_offsets(program)
    constants = Constants(np.zeros(size, np.float32), offsets)
    for vector in program.vectors():
        parts = [weights.vector(name) for name, _ in vector.parts]
        joined = np.stack(parts, 1).ravel() if vector.arrangement is Arrangement.INTERLEAVE else np.concatenate(parts)
        constants.vector(vector)[:] = joined
    return constants
