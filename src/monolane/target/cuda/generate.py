"""The generated source of a CUDA kernel: constants that follow from a plan and a card's shared memory, an include."""

from __future__ import annotations

from monolane.errors import UnsupportedModelError
from monolane.program.layout import Layout
from monolane.program.plan import Plan
from monolane.program.stage import MAX_WIDTH, Attend, Output, Program, Project
from monolane.target.generate import braces, constants, shape_constants, tables

CONSUMER_WARPS = 12
SLOT_BYTES = 16384
SLOT_UNITS = 32
BATCH_SUMS = 32 * CONSUMER_WARPS * 8
RESERVED_BYTES = 2048  # barriers, reductions, alignment
MIN_WIDE_SLOTS = 2
IN_FLIGHT_NEAR, IN_FLIGHT_FAR = 2, 6  # chunks on their way to one block: near a hand-off, and inside a long stage
SHORTEST_SPLIT, MOST_SPLITS = 64, 32  # of the context, in attention: positions, and number


_EMULATED_ENTRY = (
    'extern "C" void monolane_emulate(const monolane::Launch* launch, int delay_permille, uint64_t seed) {',
    "  monolane::emulate::delay_permille = delay_permille;",
    "  monolane::emulate::seed = seed;",
    "  using namespace monolane;",
    "  monolane_launch = *launch;",
    "  emulate::launch(monolane_kernel, 0, kWorkers, kThreads, kSharedLimit);",
    "}",
)


def owned_rows(plan: Plan) -> int:
    """The most rows of the residual stream that one worker owns."""
    residual = next(i for i, stage in enumerate(plan.program.projections) if stage.output is Output.RESIDUAL)
    return max(tape[residual].tiles for tape in plan.segments) * plan.layout.tile_rows


def slots(plan: Plan, shared_limit: int) -> tuple[int, int, int]:
    """Slots of the ring in a narrow pass, in a wide one, and the widest input a wide pass keeps in shared memory."""
    program, layout = plan.program, plan.layout
    shape = program.attention
    columns = sorted({layout.padded_cols(stage.matrix) for stage in program.projections})
    attend_sums = CONSUMER_WARPS * (-(-shape.head_dim // 8) * 8 + 2)
    fixed = 2 * columns[-1] + 4 * max(BATCH_SUMS, attend_sums) + 4 * MAX_WIDTH * owned_rows(plan) + RESERVED_BYTES
    fixed += 8 * len(program.projections)
    narrow = (shared_limit - fixed) // SLOT_BYTES
    needed = max(program.hidden, shape.heads * shape.head_dim)
    for widest in reversed(columns):
        wide = narrow - -(-MAX_WIDTH * (widest + 32) * 2 // SLOT_BYTES)
        if wide >= MIN_WIDE_SLOTS and widest >= needed:
            return narrow, wide, widest
    raise UnsupportedModelError(
        f"A hidden size of {program.hidden} does not fit the {shared_limit:,} bytes of shared memory of this GPU.",
        "Use a smaller model, or device='cpu'.",
    )


def generate(plan: Plan, shared_limit: int, emulated: bool = False, stall: tuple[int, int, int] | None = None) -> str:
    """CUDA C++ for one plan. ``emulated``: for threads of a CPU. ``stall``: (worker, stage, seconds), for tests."""
    program = plan.program
    narrow, wide, widest = slots(plan, shared_limit)
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = shape_constants(program) | {
        "kWorkers": plan.workers,
        "kSlots": narrow,
        "kWideSlots": wide,
        "kWideCols": widest,
        "kMaxOwnedRows": owned_rows(plan),
        "kResidualProjection": next(i for i, s in enumerate(program.projections) if s.output is Output.RESIDUAL),
        "kSharedLimit": shared_limit,
        "kQkNorm": int(any(isinstance(s, Attend) and s.q_norm is not None for s in program.stages)),
        "kInFlightNear": IN_FLIGHT_NEAR,
        "kInFlightFar": IN_FLIGHT_FAR,
        "kShortestSplit": SHORTEST_SPLIT,
        "kMostSplits": MOST_SPLITS,
        "kStallWorker": stall_worker,
        "kStallStage": stall_stage,
        "kStallSeconds": stall_seconds,
    }
    strides, words, plain = buffer_places(program)
    lines = [
        f'#include "{"emulate.hpp" if emulated else "ptx.cuh"}"',
        '#include "program.hpp"',
        '#include "request.hpp"',
        "namespace monolane {",
        *constants(program, integers),
        *tables(program, "MONOLANE_CONSTANT"),
        f"MONOLANE_CONSTANT int kBufferStrides[] = {braces(map(str, strides))};",
        f"MONOLANE_CONSTANT int kWordOffsets[] = {braces(map(str, words[:-1]))};",
        f"MONOLANE_CONSTANT int kWideOffsets[] = {braces(map(str, plain[:-1]))};",
        "struct Cut { int units, chunks, chunk_units; };",
        f"MONOLANE_CONSTANT Cut kCuts[] = {braces(_cut(program, plan.layout, stage) for stage in program.stages)};",
        "}  // namespace monolane",
        '#include "kernel.cuh"',
        *(_EMULATED_ENTRY if emulated else ()),
    ]
    return "\n".join(lines) + "\n"


def buffer_places(program: Program) -> tuple[list[int], list[int], list[int]]:
    """Elements per position of each buffer, and where each begins among the words and among the plain elements."""
    shape = program.attention
    sizes = {buffer.name: buffer.size for buffer in program.buffers}
    sizes["partials"] = shape.heads * shape.head_dim  # here attention hands over what it has merged
    strides = [-(-sizes[buffer.name] // 32) * 32 for buffer in program.buffers]
    words, plain = [0], [0]
    for stride in strides:
        words.append(words[-1] + stride)
        plain.append(plain[-1] + stride * MAX_WIDTH)
    return strides, words, plain


def _cut(program: Program, layout: Layout, stage: object) -> str:
    if not isinstance(stage, Project):
        return "{0, 0, 0}"
    units = layout.padded_cols(stage.matrix) // layout.block
    chunks = -(-units // SLOT_UNITS)
    return f"{{{units}, {chunks}, {-(-units // chunks)}}}"
