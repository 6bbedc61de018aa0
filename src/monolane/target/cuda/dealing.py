"""How the gates of experts are divided in a decode pass.

On the tapes every worker has the same tiles of each expert, which is an uneven share where the tiles of one expert are
few: 192 tiles for 132 workers are two for some of them and one for the others, whichever experts are chosen. So a
decode pass deals out the tiles of all chosen experts, one expert after the other, as evenly as possible. Workers with
rows of the router come to the gates late, so they get what is missing for equal shares. A worker streams its tiles from
the tapes of those that own them. (Outputs of down are sums over all chosen experts, so there a row has one worker.)
"""

from __future__ import annotations

from ctypes import Structure, c_int64, c_uint32
from itertools import accumulate

from monolane.program.plan import Plan
from monolane.program.stage import Output, Project
from monolane.target.cuda.layers import projection_rows

ROUTER_BYTES = 28 << 10  # of gates, that stream while a worker with rows of the router is busy with these


class DealtTile(Structure):
    """Where a tile lies: on the tape of which worker of the lane, and where there for the first expert. The same tile
    of the next expert is as many tiles further as that worker has of each."""

    _fields_ = [("offset", c_int64), ("worker", c_uint32), ("tiles", c_uint32)]


def is_dealt(stage: Project) -> bool:
    return stage.matrix.experts > 1 and stage.output is Output.GATE


def dealt_counts(plan: Plan) -> list[int]:
    """How many tiles each worker is dealt, in every layer that has experts: an equal share, rounded up, or less."""
    gates = [stage for stage in plan.program.projections if is_dealt(stage)]
    if not gates:
        return [0] * plan.workers
    total = gates[0].chosen * plan.layout.tiles(gates[0])
    most = -(-total // plan.workers)
    tile_bytes = max(map(plan.layout.tile_bytes, gates))
    late = min(most, max(1, ROUTER_BYTES // tile_bytes))  # tiles that take as long as the router's rows
    routing = [number for number, other in enumerate(plan.program.projections) if other.routes]
    routers = [worker for worker, tape in enumerate(plan.segments) if any(tape[number].tiles for number in routing)]
    others = [worker for worker in range(plan.workers) if worker not in routers]
    counts = [most] * plan.workers
    for worker in [*late * routers, *others][: most * plan.workers - total]:
        counts[worker] -= 1
    return counts


def most_dealt(plan: Plan) -> int:
    """The most tiles that a worker is dealt; 0 where there are no experts."""
    return max(dealt_counts(plan))


def dealt_firsts(plan: Plan) -> list[int]:
    """The number of the first tile that each worker is dealt, and that of all tiles."""
    return [0, *accumulate(dealt_counts(plan))]


def dealt_tiles(plan: Plan) -> bytes:
    """DealtTile of [layer][worker of a lane][tile that it is dealt]; those of layers without experts are zeros."""
    most, firsts = most_dealt(plan), dealt_firsts(plan)
    table = [DealtTile() for _ in range(plan.program.layers * plan.workers * most)]
    for layer, number in _gates_of_layers(plan):
        stage = plan.program.projections[number]
        each, size = plan.layout.tiles(stage), plan.layout.tile_bytes(stage)
        owners = [worker for worker, tape in enumerate(plan.segments) for _ in range(tape[number].tiles)]
        for worker in range(plan.workers):
            for place, tile in enumerate(range(firsts[worker], firsts[worker + 1])):
                owner = owners[tile % each]
                segment = plan.segments[owner][number]
                offset = segment.offset + (tile % each - segment.first_tile) * size
                table[(layer * plan.workers + worker) * most + place] = DealtTile(offset, owner, segment.tiles)
    return bytes((DealtTile * len(table))(*table))


def _gates_of_layers(plan: Plan) -> list[tuple[int, int]]:
    """(layer, number among the program's projections) of all gates of experts."""
    numbers = {id(stage): number for number, stage in enumerate(plan.program.projections)}
    return [
        (layer, numbers[id(stage)])
        for row in projection_rows(plan.program)
        for layer, stage in enumerate(row)
        if stage and is_dealt(stage)
    ]
