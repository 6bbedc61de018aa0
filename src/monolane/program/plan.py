"""A program divided among N workers: who owns which tiles of which matrix, and where they lie on whose tape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from monolane.program.layout import Layout
from monolane.program.stage import Output, Program


@dataclass(frozen=True)
class Segment:
    """One worker's share of one matrix: consecutive tiles at a place on its tape. Offsets and sizes in bytes."""

    stage: int  # index into the program's projections
    first_tile: int
    tiles: int
    offset: int
    size: int


@dataclass(frozen=True)
class Plan:
    """``segments[worker][stage]``: every worker has a segment for every projection, if need be an empty one."""

    program: Program
    layout: Layout
    workers: int
    segments: tuple[tuple[Segment, ...], ...]

    @cached_property
    def tape_bytes(self) -> tuple[int, ...]:
        return tuple(sum(segment.size for segment in tape) for tape in self.segments)

    @property
    def bytes_per_token(self) -> int:
        """Weight bytes all workers together stream for one decoded token."""
        return sum(self.tape_bytes)

    def locate(self, stage: int, tile: int) -> tuple[int, int]:
        """(worker, byte offset on its tape) of one tile of a projection."""
        for worker, tape in enumerate(self.segments):
            segment = tape[stage]
            if segment.first_tile <= tile < segment.first_tile + segment.tiles:
                return worker, segment.offset + (tile - segment.first_tile) * (segment.size // segment.tiles)
        raise IndexError(f"stage {stage} has no tile {tile}")


def make_plan(program: Program, layout: Layout, workers: int) -> Plan:
    """Divide every matrix into equal runs of tiles; tiles that are left over go to whoever has the shortest tape.

    Matrices that write the residual stream are divided all alike, so that a row of the stream has one owner for the
    whole pass and may stay with it.
    """
    if workers < 1:
        raise ValueError("a plan needs at least one worker")
    loads = [0] * workers
    segments: list[list[Segment]] = [[] for _ in range(workers)]
    residual_counts: dict[int, list[int]] = {}
    for index, stage in enumerate(program.projections):
        tiles, tile_bytes = layout.tiles(stage.matrix), layout.tile_bytes(stage.matrix)
        if stage.output is Output.RESIDUAL:
            counts = residual_counts.setdefault(tiles, _share(tiles, [0] * workers))
        else:
            counts = _share(tiles, loads)
        first = 0
        for worker, count in enumerate(counts):
            segments[worker].append(Segment(index, first, count, loads[worker], count * tile_bytes))
            loads[worker] += count * tile_bytes
            first += count
    return Plan(program, layout, workers, tuple(tuple(tape) for tape in segments))


def _share(tiles: int, loads: list[int]) -> list[int]:
    """Tiles per worker: equal, the remainder to the least loaded."""
    even, left = divmod(tiles, len(loads))
    shortest = sorted(range(len(loads)), key=lambda worker: (loads[worker], worker))[:left]
    return [even + (worker in shortest) for worker in range(len(loads))]
