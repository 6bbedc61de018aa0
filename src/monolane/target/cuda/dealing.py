"""How the gates of experts are divided in a decode pass.

On the tapes every worker has the same tiles of each expert, which is an uneven share where the tiles of one expert are
few: 192 tiles for 132 workers are two for some of them and one for the others, whichever experts are chosen. So a
decode pass deals out the tiles of all chosen experts, one expert after the other: worker w of n gets those from
total * w / n to total * (w + 1) / n. It streams them from the tapes of those that own them. (Outputs of down are sums
over all chosen experts, so there a row has one worker.)
"""

from __future__ import annotations

from ctypes import Structure, c_int64, c_uint32

from monolane.program.plan import Plan
from monolane.program.stage import Output, Project
from monolane.target.cuda.layers import projection_rows


class DealtTile(Structure):
    """Where a tile lies: on the tape of which worker of the lane, and where there for the first expert. The same tile
    of the next expert is as many tiles further as that worker has of each."""

    _fields_ = [("offset", c_int64), ("worker", c_uint32), ("tiles", c_uint32)]


def is_dealt(stage: Project) -> bool:
    return stage.matrix.experts > 1 and stage.output is Output.GATE


def most_dealt_of(plan: Plan, stage: Project) -> int:
    """The most tiles of one projection that a worker is dealt."""
    return -(-stage.chosen * plan.layout.tiles(stage) // plan.workers)


def most_dealt(plan: Plan) -> int:
    """The most tiles of any projection that a worker is dealt; 0 where there are no experts."""
    return max((most_dealt_of(plan, stage) for stage in plan.program.projections if is_dealt(stage)), default=0)


def dealt_tiles(plan: Plan) -> bytes:
    """DealtTile of [layer][worker of a lane][tile that it is dealt]; those of layers without experts are zeros."""
    most = most_dealt(plan)
    table = [DealtTile() for _ in range(plan.program.layers * plan.workers * most)]
    for layer, number in _gates(plan):
        stage = plan.program.projections[number]
        each, size = plan.layout.tiles(stage), plan.layout.tile_bytes(stage)
        owners = [worker for worker, tape in enumerate(plan.segments) for _ in range(tape[number].tiles)]
        for worker in range(plan.workers):
            first, end = (stage.chosen * each * at // plan.workers for at in (worker, worker + 1))
            for place, tile in enumerate(range(first, end)):
                owner = owners[tile % each]
                segment = plan.segments[owner][number]
                offset = segment.offset + (tile % each - segment.first_tile) * size
                table[(layer * plan.workers + worker) * most + place] = DealtTile(offset, owner, segment.tiles)
    return bytes((DealtTile * len(table))(*table))


def _gates(plan: Plan) -> list[tuple[int, int]]:
    """(layer, number among the program's projections) of all gates of experts."""
    numbers = {id(stage): number for number, stage in enumerate(plan.program.projections)}
    return [
        (layer, numbers[id(stage)])
        for row in projection_rows(plan.program)
        for layer, stage in enumerate(row)
        if stage and is_dealt(stage)
    ]
