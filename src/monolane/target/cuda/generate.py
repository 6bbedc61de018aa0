"""Generates the source of a CUDA kernel: constants, types and structs for a plan and a card, and one include."""

from __future__ import annotations

from monolane.program.plan import Plan
from monolane.target import structs
from monolane.target.cpp import braces
from monolane.target.cuda import exchange, formats, launch
from monolane.target.cuda.constants import PAGE_TOKENS, structure_constants
from monolane.target.cuda.dealing import dealt_firsts, most_dealt
from monolane.target.cuda.layers import projection_count
from monolane.target.cuda.projections import projection_types
from monolane.target.cuda.shared_memory import max_own_tokens, owned_rows, residual_projection, shared_memory
from monolane.target.cuda.stream_owners import at_once_pages
from monolane.target.generate import constants, sampling_tables, shape_constants

_EMULATED_ENTRY = (
    'extern "C" void monolane_emulate(const monolane::Launch* launch, int delay_permille, uint64_t seed) {',
    "  monolane::emulate::delay_permille = delay_permille;",
    "  monolane::emulate::seed = seed;",
    "  using namespace monolane;",
    "  monolane_launch = *launch;",
    "  emulate::launch(monolane_kernel, 0, kWorkersHere, kThreads, kSharedLimit);",
    "}",
)


def generate(
    plan: Plan,
    shared_limit: int,
    emulated: bool = False,
    traced: bool = False,
    apart: bool = False,
    stall: tuple[int, int, int] | None = None,
) -> str:
    """CUDA C++ for one plan. ``emulated``: for fibers on a CPU. ``traced``: with time stamps at every stage.
    ``apart``: for launches of one lane each. ``stall`` = (worker, stage, seconds) makes a worker sleep at a stage, to
    test deadlines."""
    program = plan.program
    lanes_here = 1 if apart else program.lanes
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = (
        shape_constants(program, plan.layout)
        | structure_constants()
        | shared_memory(plan, shared_limit).constants()
        | {
            "kProjections": projection_count(program),
            "kLanes": program.lanes,
            "kLanesHere": lanes_here,
            "kLaneWorkers": plan.workers,
            "kWorkers": program.lanes * plan.workers,
            "kWorkersHere": lanes_here * plan.workers,
            "kMaxOwnedRows": owned_rows(plan),
            "kHeadCols": plan.layout.padded_cols(program.head),
            "kMaxOwnTokens": max_own_tokens(plan),
            "kResidualProjection": residual_projection(program),
            "kSharedLimit": shared_limit,
            "kSplitPages": program.attention.split // PAGE_TOKENS,
            "kMaxSplits": launch.max_splits(plan),
            "kFusedSplits": launch.fused_splits(plan),
            "kStreamOwners": plan.stream_owners,
            "kAtOncePages": at_once_pages(plan),
            "kRouted": launch.routed(program),
            "kMostDealt": most_dealt(plan),
            "kMostChosen": max(stage.chosen for stage in program.projections),
            "kTraced": int(traced),
            "kStallWorker": stall_worker,
            "kStallStage": stall_stage,
            "kStallSeconds": stall_seconds,
        }
    )
    strides, words, plain = launch.buffer_places(program)
    lines = [
        f'#include "{"emulate.hpp" if emulated else "ptx.cuh"}"',
        '#include "program.hpp"',
        '#include "projection.cuh"',
        "namespace monolane {",
        *structs.definitions(),
        *launch.definitions(),
        *launch.lane_buffers(plan),
        *constants(program, integers),
        *formats.definitions(program),
        *sampling_tables("MONOLANE_TABLE"),
        f"constexpr int kBufferStrides[] = {braces(map(str, strides))};",
        f"constexpr int kWordOffsets[] = {braces(map(str, words[:-1]))};",
        f"constexpr int kPrefillOffsets[] = {braces(map(str, plain[:-1]))};",
        f"MONOLANE_CONSTANT int kDealtFirst[] = {braces(map(str, dealt_firsts(plan)))};",
        *projection_types(plan),
        *exchange.definitions(program),
        "}  // namespace monolane",
        '#include "kernel.cuh"',
        *(_EMULATED_ENTRY if emulated else ()),
    ]
    return "\n".join(lines) + "\n"
