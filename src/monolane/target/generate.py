"""What the generated sources of all targets share: sizes, the constants of sampling, the table of stages."""

from __future__ import annotations

import math
from collections.abc import Iterable

from monolane.model.config import SWIGLU
from monolane.model.format import BLOCK_16, BLOCK_128, BLOCK_MIN, EXPONENT, SCALE, SCALE_MIN, SCALE_ZERO
from monolane.program import sample
from monolane.program.layout import Layout
from monolane.program.stage import (
    Attend,
    Combine,
    Embed,
    Merge,
    Norm,
    Output,
    Program,
    Project,
    Routing,
    Sample,
    Scoring,
    Stage,
)
from monolane.program.tape import constant_offsets
from monolane.target.cpp import braces, integer_constants

# The layout of both targets. A k-block of one row is one cache line of a CPU. A k-block of a tile, 8 rows of 32
# columns, is a fragment of a GPU: one 16-byte load per thread of a warp, and the B operand of two MMA instructions.
LAYOUT = Layout("rows8", tile_rows=8, k_block=32)

SCALINGS = {
    SCALE: "kScale",
    EXPONENT: "kExponent",
    SCALE_MIN: "kScaleMin",
    SCALE_ZERO: "kScaleZero",
    BLOCK_MIN: "kBlockMin",
    BLOCK_16: "kBlock16",
    BLOCK_128: "kBlock128",
}
SCORINGS = {
    Scoring.SOFTMAX: "kSoftmax",
    Scoring.CHOSEN_SOFTMAX: "kChosenSoftmax",
    Scoring.SIGMOID: "kSigmoid",
}
OUTPUTS = {Output.STORE: "kStore", Output.RESIDUAL: "kResidual", Output.GATE: "kGate", Output.LOGITS: "kLogits"}


def shape_constants(program: Program, layout: Layout) -> dict[str, int]:
    """Sizes that have the same name on all targets."""
    shape = program.attention
    return {
        "kTileRows": layout.tile_rows,
        "kKBlock": layout.k_block,
        "kHidden": program.hidden,
        "kVocab": program.vocab,
        "kLayers": program.layers,
        "kHeads": shape.heads,
        "kKvHeads": shape.kv_heads,
        "kHeadDim": shape.head_dim,
        "kProjections": len(program.projections),
        "kMaxCols": max(layout.padded_cols(stage) for stage in program.projections),
    }


def constants(program: Program, integers: dict[str, int]) -> list[str]:
    """C++ constants: ``integers`` and the numbers of sampling."""
    integers = integers | {
        "kLogitBits": sample.LOGIT_BITS,
        "kFactorBits": sample.FACTOR_BITS,
        "kShareBits": sample.SHARE_BITS,
        "kExponentBits": sample.EXPONENT_BITS,
        "kTimeBits": sample.TIME_BITS,
        "kNoiseBits": sample.NOISE_BITS,
    }
    unit_rate = sample.Sampling(temperature=1.0).rate
    unsigned = {
        "kWeightBits": sample.WEIGHT_BITS,
        "kLn2Q32": sample.LN2_Q32,
        "kLn2Random": sample.LN2_RANDOM,
        "kUnitRate": unit_rate,
        "kLargestTime": sample.LARGEST_TIME,
    }
    return [
        *integer_constants(integers),
        *(f"constexpr uint64_t {name} = {value}u;" for name, value in unsigned.items()),
        f"constexpr int64_t kDistanceLimit = {sample.DISTANCE_LIMIT};",
        f"constexpr float kLogitLimit = {literal(sample.LOGIT_LIMIT)};",
        f"constexpr float kScale = {literal(program.attention.scale)};",
    ]


def sampling_tables(qualifier: str) -> list[str]:
    """The tables of sampling: powers, logarithms, stretches (program/sample.py)."""
    tables = {"kPowers": sample.POWERS, "kLogarithms": sample.LOGARITHMS, "kStretches": sample.STRETCHES}
    return [
        f"{qualifier} uint64_t {name}[] = {braces(f'{value}u' for value in table)};" for name, table in tables.items()
    ]


def tables(program: Program, qualifier: str) -> list[str]:
    """Arrays that are indexed at run time: the tables of sampling, RoPE frequencies, stages."""
    return [
        *sampling_tables(qualifier),
        f"{qualifier} double kFrequencies[] = {braces(repr(f) for f in program.attention.frequencies)};",
        f"{qualifier} Stage kStages[] = {{",
        *_stages(program),
        "};",
    ]


def _stages(program: Program) -> Iterable[str]:
    buffers = {buffer.name: index for index, buffer in enumerate(program.buffers)}
    constants, _ = constant_offsets(program)
    projection = 0
    for stage in program.stages:
        yield _stage(stage, buffers, constants, projection)
        projection += isinstance(stage, Project)


def _stage(stage: Stage, buffers: dict[str, int], constants: dict[str, int], projection: int) -> str:
    fields: dict[str, str] = {"layer": str(getattr(stage, "layer", None) or 0)}
    offsets = {"norm": -1, "bias": -1, "order": -1, "q_norm": -1, "k_norm": -1, "sinks": -1}
    gate, routing = SWIGLU, "{}"
    kind, rows, cols, eps, window, residual = "", 0, 0, 0.0, 0, -1
    reads, writes, prepare, output = -1, -1, "kPlain", "kStore"
    match stage:
        case Embed():
            kind, writes = "kEmbed", buffers[stage.writes]
        case Project():
            kind, reads, writes = "kProject", buffers[stage.reads], buffers[stage.writes]
            rows, cols, output = stage.matrix.rows, stage.matrix.cols, OUTPUTS[stage.output]
            residual = buffers[stage.residual] if stage.residual else -1
            if isinstance(stage.input, Norm):
                prepare, eps, offsets["norm"] = "kNorm", stage.input.eps, constants[stage.input.weight.name]
            elif isinstance(stage.input, Merge):
                prepare, window = "kMerge", stage.input.window or 0
                if stage.input.sinks:
                    offsets["sinks"] = constants[stage.input.sinks.name]
            gate = stage.gate
            if stage.routing:
                routing = _routing(stage.routing, buffers)
            if stage.bias:
                offsets["bias"] = constants[stage.bias.name]
            if stage.order:
                offsets["order"] = constants[stage.order.name]
        case Attend():
            kind, reads, writes, window = "kAttend", buffers[stage.reads], buffers[stage.writes], stage.window or 0
            for name, norm in (("q_norm", stage.q_norm), ("k_norm", stage.k_norm)):
                if norm:
                    offsets[name], eps = constants[norm.weight.name], norm.eps
        case Combine():
            kind, reads, writes = "kCombine", buffers[stage.reads], buffers[stage.writes]
            if stage.norm:
                offsets["norm"], eps = constants[stage.norm.weight.name], stage.norm.eps
        case Sample():
            kind, reads = "kSample", buffers[stage.reads]
    fields |= {"reads": str(reads), "writes": str(writes), "residual": str(residual), "projection": str(projection)}
    fields |= {"rows": str(rows), "cols": str(cols), "input": f"Input::{prepare}", "output": f"Output::{output}"}
    fields |= {name: str(offset) for name, offset in offsets.items()}
    limit = "__builtin_inff()" if gate.limit is None else literal(gate.limit)
    fields |= {"eps": literal(eps), "window": str(window)}
    fields |= {"gate": braces([literal(gate.slope), literal(gate.shift), limit]), "routing": routing}
    return f"  {{.kind = Kind::{kind}, " + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "},"


def _routing(routing: Routing, buffers: dict[str, int]) -> str:
    numbers = (buffers[routing.reads], routing.first, routing.count, routing.chosen)
    return braces([*map(str, numbers), f"Scoring::{SCORINGS[routing.scoring]}"])


def literal(value: float) -> str:
    """A float literal of C++ that has exactly this value."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be a constant")
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"
