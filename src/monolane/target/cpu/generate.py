"""The generated source of a kernel: constants, the table of stages, one include. The headers are the product."""

from __future__ import annotations

import math
from collections.abc import Iterable

from monolane.program import sample
from monolane.program.layout import Layout
from monolane.program.stage import Attend, Embed, Merge, Norm, Output, Program, Project, Sample, Stage
from monolane.program.tape import constant_offsets

LAYOUT = Layout("cpu", tile_rows=8, block=32)  # a block of a row is one cache line

_OUTPUTS = {Output.STORE: "kStore", Output.RESIDUAL: "kResidual", Output.GATE: "kGate", Output.LOGITS: "kLogits"}


def generate(program: Program, stall: tuple[int, int, int] | None = None) -> str:
    """C++ for one program. ``stall`` = (worker, stage, seconds) makes one worker sleep there: to test the deadline."""
    shape = program.attention
    widest = max(LAYOUT.padded_cols(stage.matrix) for stage in program.projections)
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = {
        "kTileRows": LAYOUT.tile_rows,
        "kBlock": LAYOUT.block,
        "kHidden": program.hidden,
        "kVocab": program.vocab,
        "kHeads": shape.heads,
        "kKvHeads": shape.kv_heads,
        "kHeadDim": shape.head_dim,
        "kSplit": shape.split,
        "kProjections": len(program.projections),
        "kMaxCols": widest,
        "kBufferCount": len(program.buffers),
        "kScoreBits": sample.SCORE_BITS,
        "kFactorBits": sample.FACTOR_BITS,
        "kShareBits": sample.SHARE_BITS,
        "kStallWorker": stall_worker,
        "kStallStage": stall_stage,
        "kStallSeconds": stall_seconds,
    }
    unit_rate = sample.Sampling(temperature=1.0).fixed().rate
    wide = {"kWeightBits": sample.WEIGHT_BITS, "kLn2Q32": sample.LN2_Q32, "kUnitRate": unit_rate}
    lines = [
        "#include <cstdint>",
        '#include "program.hpp"',
        '#include "request.hpp"',
        f"#define MONOLANE_CACHE_BF16 {int(shape.cache_format == 'bf16')}",
        "namespace monolane {",
        *(f"constexpr int {name} = {value};" for name, value in integers.items()),
        *(f"constexpr uint64_t {name} = {value}u;" for name, value in wide.items()),
        f"constexpr int64_t kDistanceLimit = {sample.DISTANCE_LIMIT};",
        f"constexpr float kScoreLimit = {_float(sample.SCORE_LIMIT)};",
        f"constexpr float kScale = {_float(shape.scale)};",
        f"constexpr uint64_t kPowers[] = {_braces(f'{value}u' for value in sample.POWERS)};",
        f"constexpr double kFrequencies[] = {_braces(repr(f) for f in shape.frequencies)};",
        f"constexpr int kBufferSizes[] = {_braces(str(buffer.size) for buffer in program.buffers)};",
        f"constexpr bool kBufferIsPerSplit[] = {_braces(str(int(buffer.per_split)) for buffer in program.buffers)};",
        "constexpr Stage kStages[] = {",
        *_stages(program),
        "};",
        "}  // namespace monolane",
        '#include "engine.hpp"',
    ]
    return "\n".join(lines) + "\n"


def _stages(program: Program) -> Iterable[str]:
    buffers = {buffer.name: index for index, buffer in enumerate(program.buffers)}
    constants, _ = constant_offsets(program)
    projection = 0
    for stage in program.stages:
        yield _stage(stage, buffers, constants, projection)
        projection += isinstance(stage, Project)


def _stage(stage: Stage, buffers: dict[str, int], constants: dict[str, int], projection: int) -> str:
    fields: dict[str, str] = {"layer": str(getattr(stage, "layer", None) or 0), "name": f'"{stage.name}"'}
    offsets = {"norm": -1, "bias": -1, "q_norm": -1, "k_norm": -1}
    kind, rows, cols, eps, window, residual = "", 0, 0, 0.0, 0, -1
    reads, writes, prepare, output = -1, -1, "kPlain", "kStore"
    match stage:
        case Embed():
            kind, writes = "kEmbed", buffers[stage.writes]
        case Project():
            kind, reads, writes = "kProject", buffers[stage.reads], buffers[stage.writes]
            rows, cols, output = stage.matrix.rows, stage.matrix.cols, _OUTPUTS[stage.output]
            residual = buffers[stage.residual] if stage.residual else -1
            if isinstance(stage.input, Norm):
                prepare, eps, offsets["norm"] = "kNorm", stage.input.eps, constants[stage.input.weight.name]
            elif isinstance(stage.input, Merge):
                prepare, window = "kMerge", stage.input.window or 0
            if stage.bias:
                offsets["bias"] = constants[stage.bias.name]
        case Attend():
            kind, reads, writes, window = "kAttend", buffers[stage.reads], buffers[stage.writes], stage.window or 0
            for name, norm in (("q_norm", stage.q_norm), ("k_norm", stage.k_norm)):
                if norm:
                    offsets[name], eps = constants[norm.weight.name], norm.eps
        case Sample():
            kind, reads = "kSample", buffers[stage.reads]
    fields |= {"reads": str(reads), "writes": str(writes), "residual": str(residual), "projection": str(projection)}
    fields |= {"rows": str(rows), "cols": str(cols), "input": f"Input::{prepare}", "output": f"Output::{output}"}
    fields |= {name: str(offset) for name, offset in offsets.items()}
    fields |= {"eps": _float(eps), "window": str(window)}
    return f"  {{.kind = Kind::{kind}, " + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "},"


def _float(value: float) -> str:
    """A float literal that keeps every bit."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be a constant")
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"


def _braces(values: Iterable[str]) -> str:
    return "{" + ", ".join(values) + "}"
