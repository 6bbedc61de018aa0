"""Generates the source of a CPU kernel: structs, constants, the table of stages, and one include of the headers."""

from __future__ import annotations

from monolane.program.stage import Combine, Joining, Program, Project, Stage
from monolane.target import structs
from monolane.target.cpp import braces
from monolane.target.cpu import native
from monolane.target.generate import LAYOUT, constants, literal, shape_constants, tables


def generate(program: Program, stall: tuple[int, int, int] | None = None) -> str:
    """C++ for one program. ``stall`` = (worker, stage, seconds) makes a worker sleep at a stage, to test deadlines."""
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = shape_constants(program, LAYOUT) | {
        "kSplit": program.attention.split,
        "kBufferCount": len(program.buffers),
        "kLogitsBuffer": next(i for i, buffer in enumerate(program.buffers) if buffer.name == program.head.writes),
        "kLanes": program.lanes,
        "kExchanges": sum(_exchanges(stage) for stage in program.stages),
        "kFirstLogitsStage": _first_logits_stage(program),
        "kStallWorker": stall_worker,
        "kStallStage": stall_stage,
        "kStallSeconds": stall_seconds,
    }
    lines = [
        "#include <cstdint>",
        "#define MONOLANE_DEVICE inline",
        "#define MONOLANE_LOOP",
        "#define MONOLANE_LEADING_ZEROS(bits) __builtin_clzll(bits)",
        f"#define MONOLANE_CACHE_BF16 {int(program.attention.cache_format == 'bf16')}",
        '#include "program.hpp"',
        "namespace monolane {",
        *structs.definitions(),
        *native.definitions(),
        *constants(program, integers),
        *tables(program, "constexpr"),
        f"constexpr int kBufferSizes[] = {braces(str(buffer.size) for buffer in program.buffers)};",
        *_exchange_table(program),
        f"constexpr bool kBufferIsPerSplit[] = {braces(str(int(buffer.per_split)) for buffer in program.buffers)};",
        "}  // namespace monolane",
        '#include "engine.hpp"',
    ]
    return "\n".join(lines) + "\n"


def _first_logits_stage(program: Program) -> int:
    """Stages from this one on run only in passes whose logits are needed."""
    head = program.stages.index(program.head)
    return head - isinstance(program.stages[head - 1], Combine)


def _exchanges(stage: Stage) -> bool:
    """Whether lanes write outputs of the stage to the mailbox, a residual stream's width each."""
    return isinstance(stage, Combine) or (isinstance(stage, Project) and stage.exchange is not None)


def _exchange_table(program: Program) -> list[str]:
    """Of each stage: its slot in the mailbox, the factor of a lane's own output, and the stage whose outputs of the
    other lanes are added."""
    places = {(stage.name, getattr(stage, "layer", None)): index for index, stage in enumerate(program.stages)}
    rows, slot = [], 0
    for index, stage in enumerate(program.stages):
        own, source = 1.0, -1
        if isinstance(stage, Project) and stage.exchange and stage.layer is not None:
            own = stage.exchange.own
            late = stage.exchange.late
            source = -1 if late is None else places[stage.name, stage.layer - late]
        elif isinstance(stage, Combine):
            source = index
        rows.append(f"{{{slot if _exchanges(stage) else -1}, {literal(own)}, {source}}}")
        slot += _exchanges(stage)
    joining = next((stage.joining for stage in program.stages if isinstance(stage, Combine)), Joining.SUM)
    return [
        "struct Exchange {",
        "  int slot;    // in the mailbox, or kNone",
        "  float own;   // factor of the lane's own output",
        "  int source;  // the stage whose outputs of the other lanes are added: this one or an earlier one, or kNone",
        "};",
        f"constexpr Exchange kStageExchanges[] = {braces(rows)};",
        "enum class Joining : int { kSum, kMean, kConcat };",
        f"constexpr Joining kJoining = Joining::k{joining.name.capitalize()};",
    ]
