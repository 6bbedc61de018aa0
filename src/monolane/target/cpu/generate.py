"""Generates the source of a CPU kernel: structs, constants, the table of stages, and one include of the headers."""

from __future__ import annotations

from monolane.program.stage import Program
from monolane.target import structs
from monolane.target.cpp import braces
from monolane.target.cpu import native
from monolane.target.generate import LAYOUT, constants, shape_constants, tables


def generate(program: Program, stall: tuple[int, int, int] | None = None) -> str:
    """C++ for one program. ``stall`` = (worker, stage, seconds) makes a worker sleep at a stage, to test deadlines."""
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = shape_constants(program, LAYOUT) | {
        "kSplit": program.attention.split,
        "kBufferCount": len(program.buffers),
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
        f"constexpr bool kBufferIsPerSplit[] = {braces(str(int(buffer.per_split)) for buffer in program.buffers)};",
        "}  // namespace monolane",
        '#include "engine.hpp"',
    ]
    return "\n".join(lines) + "\n"
