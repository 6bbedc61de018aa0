"""Generates the source of a CPU kernel: structs, constants, the table of stages, and one include of the headers."""

from __future__ import annotations

from monolane.model.format import BLOCK, FORMATS, Format
from monolane.program.stage import Combine, Joining, Program, Project, Stage, continues
from monolane.target import structs
from monolane.target.cpp import braces
from monolane.target.cpu import native
from monolane.target.generate import LAYOUT, SCALINGS, constants, literal, shape_constants, tables


def generate(program: Program, stall: tuple[int, int, int] | None = None) -> str:
    """C++ for one program. ``stall`` = (worker, stage, seconds) makes a worker sleep at a stage, to test deadlines."""
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = shape_constants(program, LAYOUT) | {
        "kSplit": program.attention.split,
        "kMaxExperts": max(stage.matrix.experts for stage in program.projections),
        "kMaxChosen": max(stage.chosen for stage in program.projections),
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
        *_formats(program),
        f"constexpr bool kBufferIsPerSplit[] = {braces(str(int(buffer.per_split)) for buffer in program.buffers)};",
        "}  // namespace monolane",
        '#include "engine.hpp"',
    ]
    return "\n".join(lines) + "\n"


TABLE_ZERO = 128  # added to the values of a table, so that codes are unsigned


def _formats(program: Program) -> list[str]:
    """A type for each low-bit format of the program, and for each stage the format of its weights."""
    matrices = [stage.matrix for stage in program.projections] + ([program.table] if program.table else [])
    has_bf16 = not all(stage.matrix.format.is_low_bit for stage in program.projections)
    used = dict.fromkeys(matrix.format.name for matrix in matrices if matrix.format.is_low_bit)
    numbers = {name: number for number, name in enumerate(used, 1)}
    rows = []
    for stage, following in zip(program.stages, (*program.stages[1:], None), strict=True):
        number, first_row, tile_bytes = 0, 0, 0
        if isinstance(stage, Project):
            number, first_row = numbers.get(stage.matrix.format.name, 0), stage.first_row
            tile_bytes = LAYOUT.tile_bytes(stage)
        goes_on = following is not None and continues(following)
        rows.append(f"{{{number}, {first_row}, {tile_bytes}, {str(goes_on).lower()}}}")
    table = program.table
    table_bytes = table.format.row_bytes(table.cols) if table else 0
    return [
        f"enum class Scaling : int {braces(SCALINGS.values())};",
        "template <int kNumber>",
        "struct Format;  // the low-bit formats of this program, from 1 on",
        *(
            line
            for name, number in numbers.items()
            for line in _format(FORMATS[name], number, any(m.format.name == name and m.cols % BLOCK for m in matrices))
        ),
        "struct Weights {",
        "  int format;     // kBf16 or a Format",
        "  int first_row;  // of the output, in the buffer that it is written to",
        "  int tile_bytes;",
        "  bool goes_on;  // the next stage continues this one: there is no hand-off between them",
        "};",
        f"constexpr int kBf16 = 0, kFormats = {len(used)};",
        f"constexpr bool kHasBf16 = {str(has_bf16).lower()};  // whether any projection is bf16",
        f"constexpr Weights kStageWeights[] = {braces(rows)};",
        f"constexpr Weights kHeadWeights = kStageWeights[{program.stages.index(program.head)}];",
        f"constexpr int kTableFormat = {numbers.get(table.format.name, 0) if table else 0};",
        f"constexpr int64_t kTableRowBytes = {table_bytes};",
    ]


def _format(format: Format, number: int, has_short_blocks: bool) -> list[str]:
    """``has_short_blocks``: whether columns of any matrix end within a super-block."""
    codes, scales = format.codes, format.scales
    assert codes is not None
    assert scales is not None
    values = codes.table or (0,) * 16
    fields = {
        "bool kIsInteger": str(format.is_integer).lower(),
        "int kBits": codes.bits,
        "int kZero": TABLE_ZERO if codes.table else codes.zero,
        "bool kHasTable": str(codes.table is not None).lower(),
        "uint8_t kTable[16]": braces(str(value + TABLE_ZERO) for value in values),
        "Scaling kScaling": f"Scaling::{SCALINGS[scales]}",
        "int kScaleBytes": scales.group_bytes,
        "int kBlockBytes": scales.block_bytes,
        "bool kHasShortBlocks": str(has_short_blocks).lower(),
    }
    return [
        "template <>",
        f"struct Format<{number}> {{  // {format.name}",
        *(f"  static constexpr {name} = {value};" for name, value in fields.items()),
        "};",
    ]


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
