"""Generates the types and constants that all layers of a program share: a type for each projection, and attention's.

The kernel is compiled for one layer and runs it in a loop. So every layer must have the same stages with the same
shapes, and its constant vectors must lie at the same distance from those of the layer before. Any other program is
refused. The formats of the weights may differ: a projection has a type for each of its formats, a variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from monolane.errors import UnsupportedModelError
from monolane.model.format import BLOCK, GROUP, Format
from monolane.program.plan import Plan
from monolane.program.stage import (
    Attend,
    Merge,
    Norm,
    Output,
    Plain,
    Program,
    Project,
    Scoring,
    Stage,
    Vector,
    continues,
)
from monolane.program.tape import constant_offsets
from monolane.target.cpp import braces, integer_constants
from monolane.target.cuda.constants import (
    CONSUMER_WARPS,
    DECODE_BATCH,
    FRAGMENT_BYTES,
    FRAGMENT_COLS,
    LINE_BYTES,
    MMA_COLS,
    WARPGROUP_WARPS,
    WARPGROUPS,
)
from monolane.target.cuda.dealing import is_dealt, most_dealt
from monolane.target.cuda.exchange import any_late, exchanging
from monolane.target.cuda.formats import any_low_bit, fragment_bytes, type_name
from monolane.target.cuda.layers import first_of, numbered_stages, places, projection_count, projection_rows, stage_at
from monolane.target.generate import OUTPUTS, SCORINGS, literal

SLOT_FRAGMENTS = (32, 28, 24, 20)  # the sizes that a slot of the ring may have, in fragments
# The slots of a ring, at most, where any weights are low-bit: what a warp does for every chunk takes as long as two
# super-blocks do, so a chunk has several of them for each warp. And how much larger than that a slot may be.
LOW_BIT_SLOTS, LARGER_SLOT = 16, 10 / 7
# What small shared memory has at least: so many slots beside the widest input and about so many bytes of other things.
LEAST_SLOTS, OTHER_BYTES = 4, 24 << 10
SPARE_SLOTS = 2  # that a ring may have less than these bytes leave room for
SMALL_PART = 0.1  # of the streamed bytes: a smaller matrix does not decide about the size of a slot
# In-flight limits: bytes of bulk copies in flight to one thread block. The small loads of a hand-off queue behind them,
# so the limit is low (LOWEST) while hand-offs follow each other, from the end of a layer to gate_up of the next one. It
# is higher where the next hand-off is further away (LOW, HIGH, HIGHEST), and in prefill passes with their barriers.
LOWEST, LOW, HIGH, HIGHEST = 24576, 32768, 49152, 98304
# The same where weights are integers: fewer bytes have to come in the time of as many hand-offs. But a chunk of 8-bit
# weights is about as large as the lowest limit, so only one of two warpgroups would have any: such stages keep LOWEST.
INTEGER_LIMITS = (16384, 20480, 32768, HIGHEST)
# Nothing of an expert is copied before it is chosen, so what its gates need comes when no hand-off is near.
# All workers ask for their first chunks at the same time, though: with few of them in flight, for a fifth of all that a
# worker has, the first comes sooner. Where a worker has more of gates in integers, more of it may be in flight.
EXPERT_GATES, FIRST_EXPERT_GATES, FIRST_EXPERT_CHUNKS, EXPERT_GATES_PART = 65536, 40960, 1 / 5, 3 / 8
# Lanes whose exchanges are late are at different stages at the same time. Copies of other lanes are in flight during
# a hand-off whatever a lane does, so it gains little by holding back its own: limits are this many times higher.
LATE_LANES = 1.8
# Chunks, and registers of a thread, that are loaded ahead of their use. The loop over chunks is unrolled as many times.
MAX_AHEAD, REGISTERS_AHEAD = 3, 72
FRAGMENT_REGISTERS = FRAGMENT_BYTES // 32 // 4  # of a thread, of bf16
LOW_BIT_AHEAD = 1  # of low-bit weights: their loop is long, and unrolled it was slower
INTEGER_BYTES = BLOCK * 2 + 128  # of a super-block of an input in integers, with the scales of its groups
NONE = -1


def projection_types(plan: Plan) -> list[str]:
    """The C++ constants of a layer, and a specialization of Projection for each of its projections, in each of its
    formats, and for the head."""
    program = plan.program
    rows = places(program)
    attending = next(i for i, row in enumerate(rows) if isinstance(first_of(row), Attend))
    attend = first_of(rows[attending])
    assert isinstance(attend, Attend)
    offsets, distance = _offsets(program)
    projections: list[list[Project | None]] = [*projection_rows(program), [program.head]]
    numbers = [i for i, row in enumerate(rows) if isinstance(first_of(row), Project)]  # the place of each
    firsts = [
        *range(len(numbers)),
        projection_count(program) - 1,
    ]  # of the projection in the first layer, and of the head
    stages = [*(stage_at(program, place) for place in numbers), numbered_stages(program).index(program.head)]
    merging = next(i for i, row in enumerate(projections) if isinstance(_first(row).input, Merge))
    windows = [stage.window or 0 for stage in _of_type(program.stages, Attend)]
    integers = {
        "kStagesPerLayer": stage_at(program, len(rows)),
        "kProjectionsPerLayer": len(projections) - 1,
        "kProjectionsBeforeAttention": sum(place < attending for place in numbers),
        "kConstantsPerLayer": distance,
        "kAttendStage": stage_at(program, attending),
        "kQkNorm": int(attend.q_norm is not None),
        "kQueryNorm": _offset(attend.q_norm.weight if attend.q_norm else None, offsets),
        "kKeyNorm": _offset(attend.k_norm.weight if attend.k_norm else None, offsets),
        "kSinks": _offset(_sinks(_first(projections[merging])), offsets),
        "kAnyWindow": int(any(windows)),
        "kCacheBytesInFlight": HIGH,
    }
    return [
        *integer_constants(integers),
        f"constexpr float kAttendEps = {literal(attend.q_norm.eps if attend.q_norm else 0.0)};",
        f"MONOLANE_CONSTANT int kWindows[] = {braces(map(str, windows))};",
        *(
            line
            for number, row in enumerate(projections)
            for line in _types(plan, row, (number, firsts[number], stages[number]), offsets)
        ),
        *_variant_table(projections),
        f"using AttentionOut = Projection<{merging}>;  // reads what attention has left",
        "using Head = Projection<kProjectionsPerLayer>;",
    ]


def input_cols(plan: Plan, stage: Project) -> int:
    """Columns of a projection's input, or of that of one expert, padded: to whole fragments, and to whole super-blocks
    where any matrix of the program is low-bit."""
    least = BLOCK if any_low_bit(plan.program) else FRAGMENT_COLS if input_segments(stage) > 1 else 1
    unit = max(least, plan.layout.fragment_cols(stage))
    return -(-stage.matrix.cols // unit) * unit


def input_segments(stage: Project) -> int:
    """The chosen experts where each has an input of its own, one after the other; else 1."""
    return stage.chosen if stage.matrix.experts > 1 and stage.output is Output.RESIDUAL else 1


def one_row_bytes(plan: Plan, stage: Project) -> int:
    """Bytes of a projection's input of one row, in bf16 or in integers."""
    columns = input_segments(stage) * input_cols(plan, stage)
    return columns // BLOCK * INTEGER_BYTES if stage.matrix.format.is_integer else 2 * columns


def least_slot_bytes(shared_limit: int) -> int:
    """The smallest size of a slot where any weights are low-bit, in that much shared memory."""
    return shared_limit // LOW_BIT_SLOTS // FRAGMENT_BYTES * FRAGMENT_BYTES


def slot_bytes(plan: Plan) -> int:
    """The size of a slot: the one that the chunks of all tiles fill best."""
    layout = plan.layout
    if any_low_bit(plan.program):
        return _low_bit_slot_bytes(plan)

    def filled(slot: int) -> float:
        chunks = [
            (layout.tiles(p), chunks_of(plan, p, slot)[0], layout.tile_bytes(p)) for p in plan.program.projections
        ]
        return sum(n * size for n, _, size in chunks) / sum(n * count * slot for n, count, _ in chunks)

    return max((units * FRAGMENT_BYTES for units in SLOT_FRAGMENTS), key=filled)


def _low_bit_slot_bytes(plan: Plan) -> int:
    """The same where any weights are low-bit. But tiles of large matrices are cut as little as in the largest slots."""
    kinds = _streamed_kinds(plan)
    large = [stage for stage, size in kinds if size >= SMALL_PART * plan.bytes_per_token]
    smallest = plan.layout.slot_bytes
    room = (LOW_BIT_SLOTS * smallest - _widest_input(plan) - OTHER_BYTES) // LEAST_SLOTS
    largest = max(smallest, min(int(smallest * LARGER_SLOT), room) // FRAGMENT_BYTES * FRAGMENT_BYTES)
    sizes = range(largest, smallest - 1, -FRAGMENT_BYTES)
    sizes_of_all = [slot for slot in sizes if all(_cut(plan, stage, slot) for stage, _ in kinds)] or [largest]

    def filled(slot: int) -> float:
        chunks = [(size, chunk_bytes(stage, slot)) for stage, size in kinds]
        return sum(size for size, _ in chunks) / sum(size / chunk * slot for size, chunk in chunks)

    def chunk_bytes(stage: Project, slot: int) -> float:
        """Of a chunk, on average."""
        tiles = min(chunk_tiles(plan, stage, slot), _max_tiles(plan, stage))
        return tiles * plan.layout.tile_bytes(stage) / chunks_of(plan, stage, slot)[0]

    def cuts_no_more(slot: int) -> bool:
        return all(chunks_of(plan, stage, slot)[0] <= chunks_of(plan, stage, sizes_of_all[0])[0] for stage in large)

    return max(filter(cuts_no_more, sizes_of_all), key=filled)


def _widest_input(plan: Plan) -> int:
    return max(one_row_bytes(plan, stage) for stage in plan.program.projections)


def _streamed_kinds(plan: Plan) -> list[tuple[Project, int]]:
    """A projection of every name and format, and the bytes that all of them stream for a token."""
    found: dict[tuple[str, str], tuple[Project, int]] = {}
    for stage in plan.program.projections:
        key = stage.name, stage.matrix.format.name
        first, size = found.get(key, (stage, 0))
        found[key] = first, size + stage.chosen * plan.layout.tiles(stage) * plan.layout.tile_bytes(stage)
    return list(found.values())


def chunks_of(plan: Plan, stage: Project, slot: int) -> tuple[int, int]:
    """The chunks of a tile, and the fragments of a chunk."""
    found = _cut(plan, stage, slot)
    if not found:
        raise UnsupportedModelError(
            f"The CUDA target cannot cut {stage.matrix.cols:,} columns of {stage.matrix.format.name} into equal chunks "
            f"of at most {slot:,} bytes.",
            "Use weights in another format, or device='cpu'.",
        )
    return found


def _cut(plan: Plan, stage: Project, slot: int) -> tuple[int, int] | None:
    """As chunks_of(), or None where equal chunks do not fit."""
    # The chunks of all segments of a tile are dealt out to the warpgroups.
    least = 1 if input_segments(stage) % WARPGROUPS == 0 or input_segments(stage) == 1 else WARPGROUPS
    if _fragments(plan, stage) < least:
        raise UnsupportedModelError(
            f"The CUDA target cannot run {stage.chosen} experts with {stage.matrix.cols} columns: an odd number of "
            f"experts needs more than {plan.layout.fragment_cols(stage)} columns.",
            "Use device='cpu'.",
        )
    # Products with low-bit weights are long. Where chunks are equal, only the last fragment of a warp is in doubt, and
    # the compiler mixes the instructions of the others.
    size, is_low_bit = fragment_bytes(stage.matrix.format), stage.matrix.format.is_low_bit
    for most in (slot // size, slot // size - 1):
        found = cut(_fragments(plan, stage), most, least, rounds_up=not is_low_bit)
        # What lies before a chunk in its first line has room, too (csrc/ring.cuh).
        if found and (found[0] == 1 or found[1] * size + found[1] * size % LINE_BYTES <= slot):
            return found
    return None


def cut(units: int, slot: int, least: int = 1, rounds_up: bool = True) -> tuple[int, int] | None:
    """How a tile of ``units`` fragments is cut into chunks that fit a slot of ``slot`` fragments: (number of chunks,
    fragments of a chunk). The number is 1 or a multiple of the number of warpgroups, as small as possible. Chunks are
    as equal as possible and, with ``rounds_up``, multiples of WARPGROUP_WARPS where that leaves their number as it is.
    There are at least ``least`` chunks. None where no number of chunks is left without an empty one."""
    chunks = least
    while chunks <= units:
        equal = -(-units // chunks)
        whole = min(units, -(-equal // WARPGROUP_WARPS) * WARPGROUP_WARPS)
        for size in (whole, equal) if rounds_up else (equal,):
            if size <= slot and -(-units // size) == chunks:
                return chunks, size
        chunks += WARPGROUPS if chunks > 1 else WARPGROUPS - 1
    return None


def _alike(one: Project, other: Project) -> bool:
    """Whether both are the same projection in the same format, of two layers perhaps."""
    kinds = ((stage.name, stage.matrix.format, stage.matrix.experts) for stage in (one, other))
    return len(set(kinds)) == 1


def _max_tiles(plan: Plan, stage: Project) -> int:
    """The most tiles of this projection that one worker owns or is dealt, in any layer where it has this format."""
    alike = [number for number, other in enumerate(plan.program.projections) if _alike(other, stage)]
    most = max(tape[number].tiles for tape in plan.segments for number in alike)
    return max(most, most_dealt(plan)) if is_dealt(stage) else most


def _min_tiles(plan: Plan, stage: Project) -> int:
    """The fewest tiles of this projection that a worker owns in any layer where it has this format, if it owns any."""
    alike = [number for number, other in enumerate(plan.program.projections) if _alike(other, stage)]
    return min(tape[number].tiles for tape in plan.segments for number in alike if tape[number].tiles)


def chunk_tiles(plan: Plan, stage: Project, slot: int) -> int:
    """Tiles of a chunk in a decode pass: as many small ones as fit a slot, and half of what a worker has at most, so
    that both warpgroups have some. A power of two, which divides every batch. 1 where a tile fills a slot. Where each
    expert has an input of its own, a chunk has all tiles of one of them, if they fit, else two."""
    fitting, most = slot // plan.layout.tile_bytes(stage), _max_tiles(plan, stage)
    if input_segments(stage) > 1:
        together = 1 << max(most - 1, 0).bit_length()
        if chunks_of(plan, stage, slot)[0] > 1 or fitting < 2:
            return 1
        return together if together <= min(fitting, WARPGROUP_WARPS) else 2
    return 1 << max(min(fitting, most // WARPGROUPS, DECODE_BATCH), 1).bit_length() - 1


def _ahead(plan: Plan, stage: Project, chunks: int, chunk_fragments: int, tiles: int) -> int:
    """Chunks that a warpgroup loads to registers ahead: as many as registers allow, and at most its share."""
    if stage.matrix.format.is_low_bit:
        return LOW_BIT_AHEAD
    own = -(-(-(-plan.layout.tiles(stage) // plan.workers) * chunks) // tiles)
    teams = min(tiles, WARPGROUP_WARPS)  # of warps, which take the tiles of a chunk (csrc/share.cuh)
    shares = -(-min(chunk_fragments, WARPGROUP_WARPS) * teams // WARPGROUP_WARPS)  # of a tile for one warp
    of_warp = tiles // teams * shares * -(-chunk_fragments // WARPGROUP_WARPS)
    registers = of_warp * FRAGMENT_REGISTERS
    return max(1, min(MAX_AHEAD, REGISTERS_AHEAD // registers, -(-own // WARPGROUPS)))


def is_small(plan: Plan, stage: Project) -> bool:
    """Whether the consumer warps hold all weights that a worker has of a projection in registers, before the input of a
    decode pass is there (csrc/small_product.cuh). They are bf16, in whole tiles, each of one chunk."""
    if not is_plain(plan, stage) or isinstance(stage.input, Merge) or stage.output is Output.LOGITS:
        return False
    fragments = _max_tiles(plan, stage) * -(-_fragments(plan, stage) // CONSUMER_WARPS)
    return fragments * FRAGMENT_REGISTERS <= REGISTERS_AHEAD and _are_in_ring(plan, stage)


def is_plain(plan: Plan, stage: Project) -> bool:
    """Whether a projection is bf16 and alone in its stage, without experts, and in whole tiles of one chunk each."""
    matrix = stage.matrix
    if matrix.format.is_low_bit or matrix.experts > 1 or stage.routes or stage.routing or stage.order:
        return False
    following = plan.program.stages[plan.program.stages.index(stage) + 1]
    if stage.continues or continues(following) or plan.layout.rows(stage) != MMA_COLS:
        return False
    return chunks_of(plan, stage, slot_bytes(plan))[0] == 1


def _are_in_ring(plan: Plan, stage: Project) -> bool:
    """Whether all that a worker has of a stage surely is in the ring at the same time, in slots of this plan."""
    slot = slot_bytes(plan)
    room = plan.layout.slot_bytes * LOW_BIT_SLOTS - _widest_input(plan) - OTHER_BYTES
    return -(-_max_tiles(plan, stage) // chunk_tiles(plan, stage, slot)) <= room // slot - SPARE_SLOTS


def small_rows(plan: Plan) -> int:
    """The most rows that one worker has of a small projection."""
    small = (stage for stage in plan.program.projections if is_small(plan, stage))
    return max((MMA_COLS * _max_tiles(plan, stage) for stage in small), default=0)


def _in_flight_limits(program: Program, stage: Project, chunk_bytes: int, own_chunks: int) -> str:
    """The members of InFlightLimits (csrc/projection.cuh), in chunks of ``chunk_bytes``. ``own_chunks``: of a worker.

    The copies in flight during the hand-off of a stage's input are those of its own first chunks, at most a whole ring.
    """
    limits, least = (LOWEST, LOW, HIGH, HIGHEST), 1
    codes = stage.matrix.format.codes
    if codes and stage.matrix.format.is_integer:
        limits = INTEGER_LIMITS
        if codes.bits == 8 and stage.output is not Output.LOGITS:
            limits, least = (LOWEST, *INTEGER_LIMITS[1:]), WARPGROUPS
    smallest, *others = (size * LATE_LANES if any_late(program) else size for size in limits)
    lowest = max(least, round(smallest / chunk_bytes))
    low, high, highest = (-(-round(size) // chunk_bytes) for size in others)
    steps: tuple[object, ...] = (0, lowest, 0, lowest, lowest)
    if stage.matrix.experts > 1:
        of_experts = -(-(EXPERT_GATES if stage.output is Output.GATE else HIGH) // chunk_bytes)
        steps = (0, of_experts, 0, of_experts, of_experts)
        if stage.matrix.format.is_integer and stage.output is Output.GATE:
            of_experts = max(of_experts, int(own_chunks * EXPERT_GATES_PART))
            first_chunks, first = int(own_chunks * FIRST_EXPERT_CHUNKS), max(1, round(FIRST_EXPERT_GATES / chunk_bytes))
            steps = (first_chunks, first, 0, of_experts, of_experts)
    elif stage.output in (Output.GATE, Output.LOGITS):
        steps = ("kSlots / 2", lowest, "kSlots * 5 / 4", low, highest)
    elif isinstance(stage.input, Plain):
        steps = ("kSlots * 3 / 8", high, "kSlots * 3 / 2", low, highest)
    return braces(map(str, (*steps, highest)))


def _fragments(plan: Plan, stage: Project) -> int:
    """Fragments of a tile, of which the last one may be short."""
    return -(-plan.layout.padded_cols(stage) // plan.layout.fragment_cols(stage))


Kind = TypeVar("Kind", Project, Attend)


def _of_type(stages: Iterable[Stage], kind: type[Kind]) -> list[Kind]:
    return [stage for stage in stages if isinstance(stage, kind)]


def _offsets(program: Program) -> tuple[dict[str, int], int]:
    """Where constant vectors begin, those of all layers as if they were of the first; and how far the next layer's are
    behind. Raises ValueError where layers are not equally far apart."""
    offsets, size = constant_offsets(program)
    layers: dict[str, int] = {}  # of vectors
    steps: set[float] = set()
    for row in places(program):
        vectors = [(layer, _vectors(stage)) for layer, stage in enumerate(row) if stage]
        layers |= {vector.name: layer for layer, found in vectors for vector in found}
        for (one, before), (two, after) in pairwise(vectors):
            steps |= {(offsets[b.name] - offsets[a.name]) / (two - one) for a, b in zip(before, after, strict=True)}
    if len(steps) > 1:
        raise ValueError("the constants of this program's layers are not equally far apart")
    distance = int(steps.pop()) if steps else size
    return {name: at - layers.get(name, 0) * distance for name, at in offsets.items()}, distance


def _vectors(stage: Stage) -> list[Vector]:
    if isinstance(stage, Project):
        norm = stage.input.weight if isinstance(stage.input, Norm) else None
        return [vector for vector in (norm, _sinks(stage), stage.order, stage.bias) if vector]
    assert isinstance(stage, Attend)
    return [norm.weight for norm in (stage.q_norm, stage.k_norm) if norm]


def _sinks(stage: Project) -> Vector | None:
    return stage.input.sinks if isinstance(stage.input, Merge) else None


def _exchange(program: Program, stage: Project) -> int:
    names = [stages[0].name for stages in exchanging(program)]
    return names.index(stage.name) if stage.exchange else NONE


def _input_age(program: Program, stage: Project) -> int:
    """How many stages before its own the input of a projection was written."""
    before = program.stages[: program.stages.index(stage)]
    writer = max((i for i, other in enumerate(before) if getattr(other, "writes", None) == stage.reads), default=0)
    return sum(not continues(other) for other in program.stages[writer + 1 : len(before) + 1])


def _output_stride(plan: Plan, stage: Project) -> int:
    """From the outputs of one chosen expert to those of the next, in the buffer."""
    readers = [other for other in plan.program.projections if other.reads == stage.writes and input_segments(other) > 1]
    return input_cols(plan, readers[0]) if readers else 0


def _offset(vector: Vector | None, offsets: dict[str, int]) -> int:
    return offsets[vector.name] if vector else NONE


def _takes_input(program: Program, stage: Project) -> bool:
    """Whether a projection continues one with an input of the same kind, for integers, FP8 or bf16, in all layers where
    it has this format."""
    alike = [before for before, other in pairwise(program.projections) if _alike(other, stage)]
    return stage.continues and all(b.reads == stage.reads and _kind_of_input(b) == _kind_of_input(stage) for b in alike)


def _kind_of_input(stage: Project) -> tuple[bool, bool]:
    return stage.matrix.format.is_low_bit, stage.matrix.format.is_integer


def _first(row: Sequence[Project | None]) -> Project:
    return next(stage for stage in row if stage is not None)


def _variants(row: Sequence[Project | None]) -> list[Format]:
    """The formats of a projection in the layers, in the order of first use."""
    return list(dict.fromkeys(stage.matrix.format for stage in row if stage))


def _variant_table(projections: Sequence[Sequence[Project | None]]) -> list[str]:
    """The variant of each projection in each layer, or NONE where a layer skips it; the head has one."""
    rows = [[_variants(row).index(stage.matrix.format) if stage else NONE for stage in row] for row in projections]
    return [f"MONOLANE_CONSTANT int kVariantOf[][kLayers] = {braces(braces(map(str, row)) for row in rows)};"]


def _types(
    plan: Plan, row: Sequence[Project | None], place: tuple[int, int, int], offsets: dict[str, int]
) -> list[str]:
    """The C++ types of one projection, one for each of its formats. ``place``: its number in a layer, its number in the
    first layer, and that of its stage."""
    formats = _variants(row)
    examples = [next(stage for stage in row if stage and stage.matrix.format == format) for format in formats]
    number, first, stage_number = place
    fields = {
        "int kIndex": number,
        "int kVariants": len(formats),
        "bool kInEveryLayer": str(None not in row).lower(),
        "int kStage": stage_number,
        "int kFirst": first,
    }
    return [
        line
        for variant, stage in enumerate(examples)
        for line in _specialization(plan, stage, _first(row), fields, variant, offsets)
    ]


def _specialization(
    plan: Plan, stage: Project, first: Project, place: dict[str, object], variant: int, offsets: dict[str, int]
) -> list[str]:
    """The C++ type of one projection; csrc/projection.cuh explains its members. ``first``: that of the first layer that
    has it. ``place``: members that say where it is."""
    program = plan.program
    buffers = {buffer.name: place for place, buffer in enumerate(program.buffers)}
    slot = slot_bytes(plan)
    chunks, chunk_fragments = chunks_of(plan, stage, slot)
    tiles, size = chunk_tiles(plan, stage, slot), fragment_bytes(stage.matrix.format)
    norm = first.input if isinstance(first.input, Norm) else None
    following = program.stages[program.stages.index(first) + 1]
    fields = place | {
        "bool kIsHead": str(stage.output is Output.LOGITS).lower(),
        "bool kContinues": str(stage.continues).lower(),
        "bool kEndsStage": str(not continues(following)).lower(),
        "bool kTakesInput": str(_takes_input(program, stage)).lower(),
        "int kRows": stage.matrix.rows,
        "int kCols": stage.matrix.cols,
        "int kTileRows": plan.layout.rows(stage),
        "int kFragmentCols": plan.layout.fragment_cols(stage),
        "int kFragmentBytes": size,
        "int kFragments": _fragments(plan, stage),
        "int kShortGroups": plan.layout.padded_cols(stage) % plan.layout.fragment_cols(stage) // GROUP,
        "int kTileBytes": plan.layout.tile_bytes(stage),
        "int kChunks": chunks,
        "int kChunkFragments": chunk_fragments,
        "int kChunkTiles": tiles,
        "int kMinTiles": _min_tiles(plan, stage),
        "int kMaxTiles": _max_tiles(plan, stage),
        "int kAhead": _ahead(plan, stage, chunks, chunk_fragments, tiles),
        "InFlightLimits kInFlight": _in_flight_limits(
            program, stage, tiles * chunk_fragments * size, -(-_max_tiles(plan, stage) // tiles) * chunks
        ),
        "Output kOutput": f"Output::{OUTPUTS[stage.output]}",
        "bool kIsSmall": str(is_small(plan, stage)).lower(),
        "bool kMergesSplits": str(isinstance(stage.input, Merge)).lower(),
        "int kNorm": _offset(norm.weight if norm else None, offsets),
        "int kOrder": _offset(first.order, offsets),
        "int kBias": _offset(first.bias, offsets),
        "float kEps": literal(norm.eps if norm else 0.0),
        "int kReads": buffers[stage.reads],
        "int kWrites": buffers[stage.writes],
        "int kFirstRow": stage.first_row,
        "int kExchange": _exchange(program, stage),
        "int kInputAge": _input_age(program, first),
        "bool kRoutes": str(first.routes).lower(),
        "int kExperts": stage.matrix.experts,
        "int kChosen": stage.chosen,
        "int kLogit": stage.routing.first if stage.routing else NONE,
        "Scoring kScoring": f"Scoring::{SCORINGS[stage.routing.scoring if stage.routing else Scoring.SIGMOID]}",
        "bool kChooses": str(stage.matrix.experts > 1 and stage.output is Output.GATE).lower(),
        "int kSegments": input_segments(stage),
        "int kOutputStride": _output_stride(plan, stage),
        "float kGateSlope": literal(stage.gate.slope),
        "float kGateShift": literal(stage.gate.shift),
        "bool kGateLimited": str(stage.gate.limit is not None).lower(),
        "float kGateLimit": literal(stage.gate.limit or 0.0),
    }
    return [
        "template <>",
        f"struct Projection<{place['int kIndex']}, {variant}> {{  // {stage.name}",
        f"  using Format = {type_name(stage.matrix.format)};",
        *(f"  static constexpr {name} = {value};" for name, value in fields.items()),
        "};",
    ]
