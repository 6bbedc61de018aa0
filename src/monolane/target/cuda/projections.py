"""Generates the types and constants that all layers of a program share: a type for each projection, and attention's.

The kernel is compiled for one layer and runs it in a loop. So every layer must have the same stages with the same
shapes, and its constant vectors must lie at the same distance from those of the layer before. Any other program is
refused.
"""

from __future__ import annotations

from itertools import pairwise

from monolane.program.plan import Plan
from monolane.program.stage import Attend, Merge, Norm, Output, Plain, Program, Project, Stage, Vector
from monolane.program.tape import constant_offsets
from monolane.target.cpp import braces, integer_constants
from monolane.target.cuda.constants import DECODE_BATCH, FRAGMENT_BYTES, WARPGROUP_WARPS, WARPGROUPS
from monolane.target.cuda.exchange import any_late, exchanging
from monolane.target.generate import OUTPUTS, literal

SLOT_FRAGMENTS = (32, 28, 24, 20)  # the sizes that a slot of the ring may have, in fragments
# In-flight limits: bytes of bulk copies in flight to one thread block. The small loads of a hand-off queue behind them,
# so the limit is low (LOWEST) while hand-offs follow each other, from the end of a layer to gate_up of the next one. It
# is higher where the next hand-off is further away (LOW, HIGH, HIGHEST), and in prefill passes with their barriers.
LOWEST, LOW, HIGH, HIGHEST = 24576, 32768, 49152, 98304
# Lanes whose exchanges are late are at different stages at the same time. Copies of other lanes are in flight during
# a hand-off whatever a lane does, so it gains little by holding back its own: limits are this many times higher.
LATE_LANES = 1.8
MAX_AHEAD, FRAGMENTS_AHEAD = 3, 18  # chunks, and fragments of a warp, that are loaded to registers ahead of their use
NONE = -1


def projection_types(plan: Plan) -> list[str]:
    """The C++ constants of a layer, and a specialization of Projection for each of its projections and for the head."""
    program = plan.program
    layer = _layer(program)
    attend_at = next(i for i, stage in enumerate(layer) if isinstance(stage, Attend))
    attend = layer[attend_at]
    assert isinstance(attend, Attend)
    offsets, _ = constant_offsets(program)
    projections = [(1 + i, stage) for i, stage in enumerate(layer) if isinstance(stage, Project)]
    head = [(len(program.stages) - 2, program.head)]
    merging = next(i for i, (_, stage) in enumerate(projections) if isinstance(stage.input, Merge))
    windows = [stage.window or 0 for stage in program.stages if isinstance(stage, Attend)]
    integers = {
        "kStagesPerLayer": len(layer),
        "kProjectionsPerLayer": len(projections),
        "kConstantsPerLayer": _distance(program, len(layer), offsets),
        "kAttendStage": 1 + attend_at,
        "kQkNorm": int(attend.q_norm is not None),
        "kQueryNorm": _offset(attend.q_norm.weight if attend.q_norm else None, offsets),
        "kKeyNorm": _offset(attend.k_norm.weight if attend.k_norm else None, offsets),
        "kAnyWindow": int(any(windows)),
        "kCacheBytesInFlight": HIGH,
    }
    specializations = [
        line
        for number, (index, stage) in enumerate((*projections, *head))
        for line in _specialization(
            plan, stage, number, index, number if stage is not program.head else len(program.projections) - 1, offsets
        )
    ]
    return [
        *integer_constants(integers),
        f"constexpr float kAttendEps = {literal(attend.q_norm.eps if attend.q_norm else 0.0)};",
        f"MONOLANE_CONSTANT int kWindows[] = {braces(map(str, windows))};",
        *specializations,
        f"using AttentionOut = Projection<{merging}>;  // reads what attention has left",
        "using Head = Projection<kProjectionsPerLayer>;",
    ]


def slot_fragments(plan: Plan) -> int:
    """The size of a slot, in fragments: the one that the chunks of all tiles fill best."""

    def filled(units: int) -> float:
        tiles = [(plan.layout.tiles(p), _fragments(plan, p)) for p in plan.program.projections]
        return sum(n * tile for n, tile in tiles) / sum(n * cut(tile, units)[0] * units for n, tile in tiles)

    return max(SLOT_FRAGMENTS, key=filled)


def cut(units: int, slot: int) -> tuple[int, int]:
    """How a tile of ``units`` fragments is cut into chunks that fit a slot of ``slot`` fragments: (number of chunks,
    fragments of a chunk). The number is 1 or a multiple of the number of warpgroups, as small as possible. Chunks are
    as equal as possible, and rounded up to a multiple of WARPGROUP_WARPS where that leaves their number as it is."""
    chunks = 1
    while True:
        equal = -(-units // chunks)
        whole = min(units, -(-equal // WARPGROUP_WARPS) * WARPGROUP_WARPS)
        for size in (whole, equal):
            if size <= slot and -(-units // size) == chunks:
                return chunks, size
        chunks += WARPGROUPS if chunks > 1 else WARPGROUPS - 1


def _max_tiles(plan: Plan, stage: Project) -> int:
    """The most tiles that one worker has of this projection, in any layer."""
    alike = [number for number, other in enumerate(plan.program.projections) if _likeness(other) == _likeness(stage)]
    return max(tape[number].tiles for tape in plan.segments for number in alike)


def chunk_tiles(plan: Plan, stage: Project) -> int:
    """Tiles of a chunk in a decode pass: as many small ones as fit a slot, and half of what a worker has at most, so
    that both warpgroups have some. A power of two, which divides every batch. 1 where a tile fills a slot."""
    most = min(slot_fragments(plan) // _fragments(plan, stage), _max_tiles(plan, stage) // WARPGROUPS, DECODE_BATCH)
    return 1 << max(most, 1).bit_length() - 1


def _ahead(plan: Plan, stage: Project, chunks: int, chunk_fragments: int, tiles: int) -> int:
    """Chunks that a warpgroup loads to registers ahead: as many as registers allow, and at most its share."""
    own = -(-(-(-plan.layout.tiles(stage) // plan.workers) * chunks) // tiles)
    teams = min(tiles, WARPGROUP_WARPS)  # of warps, which take the tiles of a chunk (csrc/project.cuh)
    shares = -(-min(chunk_fragments, WARPGROUP_WARPS) * teams // WARPGROUP_WARPS)  # of a tile for one warp
    of_warp = tiles // teams * shares * -(-chunk_fragments // WARPGROUP_WARPS)
    return max(1, min(MAX_AHEAD, FRAGMENTS_AHEAD // of_warp, -(-own // WARPGROUPS)))


def _in_flight_limits(stage: Project, chunk_bytes: int, factor: float) -> str:
    """The members of InFlightLimits (csrc/projection.cuh), in chunks of ``chunk_bytes``. ``factor``: of all limits.

    The copies in flight during the hand-off of a stage's input are those of its own first chunks, at most a whole ring.
    """
    lowest = round(factor * LOWEST / chunk_bytes)
    low, high, highest = (-(-round(factor * size) // chunk_bytes) for size in (LOW, HIGH, HIGHEST))
    steps: tuple[object, ...] = (0, lowest, 0, lowest, lowest)
    if stage.output in (Output.GATE, Output.LOGITS):
        steps = ("kSlots / 2", lowest, "kSlots * 5 / 4", low, highest)
    elif isinstance(stage.input, Plain):
        steps = ("kSlots * 3 / 8", high, "kSlots * 3 / 2", low, highest)
    return braces(map(str, (*steps, highest)))


def _fragments(plan: Plan, stage: Project) -> int:
    """Fragments of a tile."""
    return plan.layout.padded_cols(stage) // plan.layout.fragment_cols(stage)


def _layer(program: Program) -> tuple[Stage, ...]:
    """The stages of the first layer. Raises ValueError where another layer differs in its stages or shapes."""
    others = sum(not isinstance(stage, Attend) and getattr(stage, "layer", None) is None for stage in program.stages)
    count, rest = divmod(len(program.stages) - others, program.layers)
    layers = [program.stages[1 + i * count : 1 + (i + 1) * count] for i in range(program.layers)]
    alike = all([_likeness(stage) for stage in layer] == [_likeness(stage) for stage in layers[0]] for layer in layers)
    if rest or not alike:
        raise ValueError("the layers of this program are not alike")
    return layers[0]


def _likeness(stage: Stage) -> tuple[object, ...]:
    if isinstance(stage, Project):
        shape = (stage.matrix.rows, stage.matrix.cols, stage.bias is None, stage.output)
        return (type(stage), type(stage.input), *shape, stage.reads, stage.writes)
    assert isinstance(stage, Attend)
    return (type(stage), stage.q_norm is None, stage.reads, stage.writes)


def _distance(program: Program, count: int, offsets: dict[str, int]) -> int:
    """The distance between the constant vectors of one layer and those of the next, in elements."""
    vectors = [[v for stage in _of_layer(program, i, count) for v in _vectors(stage)] for i in range(program.layers)]
    starts = [[offsets[vector.name] for vector in layer] for layer in vectors]
    steps = {b - a for one, two in pairwise(starts) for a, b in zip(one, two, strict=True)}
    if len(steps) > 1:
        raise ValueError("the constants of this program's layers are not equally highest apart")
    return steps.pop() if steps else sum(-(-v.size // 16) * 16 for v in vectors[0])


def _of_layer(program: Program, layer: int, count: int) -> tuple[Stage, ...]:
    return program.stages[1 + layer * count : 1 + (layer + 1) * count]


def _vectors(stage: Stage) -> list[Vector]:
    if isinstance(stage, Project):
        norm = stage.input.weight if isinstance(stage.input, Norm) else None
        return [vector for vector in (norm, stage.bias) if vector]
    assert isinstance(stage, Attend)
    return [norm.weight for norm in (stage.q_norm, stage.k_norm) if norm]


def _exchange(program: Program, stage: Project) -> int:
    names = [stages[0].name for stages in exchanging(program)]
    return names.index(stage.name) if stage.exchange else NONE


def _offset(vector: Vector | None, offsets: dict[str, int]) -> int:
    return offsets[vector.name] if vector else NONE


def _specialization(
    plan: Plan, stage: Project, number: int, index: int, projection: int, offsets: dict[str, int]
) -> list[str]:
    """The C++ type of one projection; csrc/projection.cuh explains its members."""
    buffers = {buffer.name: place for place, buffer in enumerate(plan.program.buffers)}
    fragments = _fragments(plan, stage)
    chunks, chunk_fragments = cut(fragments, slot_fragments(plan))
    tiles = chunk_tiles(plan, stage)
    norm = stage.input if isinstance(stage.input, Norm) else None
    fields = {
        "int kIndex": number,
        "bool kIsHead": str(stage.output is Output.LOGITS).lower(),
        "int kStage": index,
        "int kFirst": projection,
        "int kRows": stage.matrix.rows,
        "int kCols": stage.matrix.cols,
        "int kTileRows": plan.layout.rows(stage),
        "int kFragmentCols": plan.layout.fragment_cols(stage),
        "int kFragments": fragments,
        "int kChunks": chunks,
        "int kChunkFragments": chunk_fragments,
        "int kChunkTiles": tiles,
        "int kMaxTiles": _max_tiles(plan, stage),
        "int kAhead": _ahead(plan, stage, chunks, chunk_fragments, tiles),
        "InFlightLimits kInFlight": _in_flight_limits(
            stage, tiles * chunk_fragments * FRAGMENT_BYTES, LATE_LANES if any_late(plan.program) else 1.0
        ),
        "Output kOutput": f"Output::{OUTPUTS[stage.output]}",
        "bool kMergesSplits": str(isinstance(stage.input, Merge)).lower(),
        "int kNorm": _offset(norm.weight if norm else None, offsets),
        "int kBias": _offset(stage.bias, offsets),
        "float kEps": literal(norm.eps if norm else 0.0),
        "int kReads": buffers[stage.reads],
        "int kWrites": buffers[stage.writes],
        "int kExchange": _exchange(plan.program, stage),
    }
    return [
        "template <>",
        f"struct Projection<{number}> {{  // {stage.name}",
        *(f"  static constexpr {name} = {value};" for name, value in fields.items()),
        "};",
    ]
