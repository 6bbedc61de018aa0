"""The generated source of a CUDA kernel: constants that follow from a plan and a card's shared memory, an include."""

from __future__ import annotations

from monolane.errors import UnsupportedModelError
from monolane.program.plan import Plan
from monolane.program.stage import MAX_WIDTH, Output, Program
from monolane.target.cuda.projections import FRAGMENT_BYTES, projection_types, slot_fragments
from monolane.target.generate import braces, constants, sampling_tables, shape_constants

CONSUMER_WARPS = 8
BATCH_SUMS = 32 * CONSUMER_WARPS * 8
RESERVED_BYTES = 2048  # barriers, reductions, alignment
MIN_PREFILL_SLOTS = 2
FRAGMENT_COLS = 64  # the most k of a unit: rows of activations are whole units
RUN_AHEAD_BYTES = 16 << 10  # that a worker may have to stream more than its equal share of a stage, to level the tapes
TAG_BITS = 16  # of a word of activations: the other half of it
MAX_LOGITS_BYTES = 8192  # bytes of logits in shared memory
BUCKETS, HISTOGRAMS = 256, 3  # of sampling: buckets of a histogram, histograms in turn
PUBLISHED = 8  # of sampling: numbers that a worker publishes
# The cache is kept in blocks of positions; attention divides them into splits of at least so many blocks, and not into
# more splits than there are workers for.
PAGE_TOKENS = 16
SPLIT_PAGES, MAX_SPLITS = 16, 64
SPLIT_BYTES = 64 << 10  # of keys and values, which one worker reads before there are more splits
# Splits that the stage after attention merges on its way in, if it has to read no more words than this for them.
FUSED_SPLITS, FUSED_WORDS = 3, 8192


_EMULATED_ENTRY = (
    'extern "C" void monolane_emulate(const monolane::Launch* launch, int delay_permille, uint64_t seed) {',
    "  monolane::emulate::delay_permille = delay_permille;",
    "  monolane::emulate::seed = seed;",
    "  using namespace monolane;",
    "  monolane_launch = *launch;",
    "  emulate::launch(monolane_kernel, 0, kWorkers, kThreads, kSharedLimit);",
    "}",
)


def residual_projection(program: Program) -> int:
    """The first that writes the residual stream; all of them are divided alike."""
    return next(i for i, stage in enumerate(program.projections) if stage.output is Output.RESIDUAL)


def owned_rows(plan: Plan) -> int:
    """The most rows of the residual stream that one worker owns."""
    residual = residual_projection(plan.program)
    return max(tape[residual].tiles for tape in plan.segments) * plan.layout.rows(plan.program.projections[residual])


def max_splits(plan: Plan) -> int:
    return max(1, min(MAX_SPLITS, plan.workers // plan.program.attention.kv_heads))


def fused_splits(plan: Plan) -> int:
    shape = plan.program.attention
    if shape.head_dim % 4:
        return 1
    return max(1, min(FUSED_SPLITS, max_splits(plan), FUSED_WORDS // (shape.heads * shape.head_dim)))


def x_bytes(plan: Plan) -> int:
    """The place of a projection's input; together with that of its sums it has to hold the scratch of attention
    and of sampling."""
    shape = plan.program.attention
    queries = MAX_WIDTH * (_up(shape.head_dim, 64) + 32) * 2 + 2 * _up(shape.head_dim, 32) * 2 + 2 * MAX_WIDTH * 4
    results = MAX_WIDTH * _up(shape.head_dim, 32) * 4
    scratch = queries + 2 * CONSUMER_WARPS * MAX_WIDTH * 4 + results
    chunk = slot_fragments(plan) * plan.layout.block
    widest = max(_up(plan.layout.padded_cols(stage), chunk) for stage in plan.program.projections)
    return _up(max(2 * widest, scratch - 4 * BATCH_SUMS, _sample_bytes(plan)), 128)


def _sample_bytes(plan: Plan) -> int:
    """What sampling keeps in the place of inputs: tables, a number for every worker, and the logits of a worker's own
    tokens, behind the input they come from; those, if need be, elsewhere."""
    table = 8 * (3 * 256 + _up(plan.workers, 16))
    head = 2 * plan.layout.padded_cols(plan.program.head)
    logits = _up(4 * _max_own_tokens(plan), 128)
    return max(table, head) + logits if logits <= MAX_LOGITS_BYTES else table


def _max_own_tokens(plan: Plan) -> int:
    """Of the vocabulary, that one worker has."""
    return plan.layout.rows(plan.program.head) * max(tape[-1].tiles for tape in plan.segments)


def slot_bytes(plan: Plan) -> int:
    return slot_fragments(plan) * FRAGMENT_BYTES


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def besides_ring(plan: Plan) -> int:
    """Bytes of shared memory."""
    fixed = x_bytes(plan) + 4 * BATCH_SUMS + 4 * MAX_WIDTH * owned_rows(plan) + RESERVED_BYTES
    return fixed + 8 * len(plan.program.projections) + _up(_max_own_tokens(plan), 128)


def slots(plan: Plan, shared_limit: int) -> tuple[int, int, int]:
    """Slots of the ring in a narrow pass, in a wide one, and the widest input a wide pass keeps in shared memory."""
    program, layout = plan.program, plan.layout
    shape = program.attention
    columns = sorted({layout.padded_cols(stage) for stage in program.projections})
    narrow = (shared_limit - besides_ring(plan)) // slot_bytes(plan)
    new_block = PAGE_TOKENS * (_up(shape.head_dim, 32) + _up(shape.head_dim, 16)) * 2  # of a wide pass
    for widest in (*reversed(columns), 0):
        wide = narrow - -(-max(MAX_WIDTH * (widest + 32) * 2, new_block) // slot_bytes(plan))
        if wide >= MIN_PREFILL_SLOTS:
            return narrow, wide, widest
    raise UnsupportedModelError(
        f"Matrices of {columns[-1]:,} columns do not fit the {shared_limit:,} bytes of shared memory of this GPU.",
        "Use a smaller model, or device='cpu'.",
    )


def generate(
    plan: Plan,
    shared_limit: int,
    emulated: bool = False,
    traced: bool = False,
    stall: tuple[int, int, int] | None = None,
) -> str:
    """CUDA C++ for one plan. ``emulated``: for threads of a CPU. ``traced``: with time stamps at every stage.
    ``stall``: (worker, stage, seconds), for tests."""
    program = plan.program
    narrow, wide, widest = slots(plan, shared_limit)
    spare = shared_limit - besides_ring(plan) - narrow * slot_bytes(plan)
    stall_worker, stall_stage, stall_seconds = stall or (-1, -1, 0)
    integers = shape_constants(program, plan.layout) | {
        "kWorkers": plan.workers,
        "kSlots": narrow,
        "kPrefillSlots": wide,
        "kPrefillCols": widest,
        "kMaxOwnedRows": owned_rows(plan),
        "kResidualProjection": residual_projection(program),
        "kSharedLimit": shared_limit,
        "kSlotFragments": slot_fragments(plan),
        "kSplitPages": SPLIT_PAGES,
        "kMaxSplits": max_splits(plan),
        "kSplitBytes": SPLIT_BYTES,
        "kFusedSplits": fused_splits(plan),
        "kXBytes": x_bytes(plan) + spare // 128 * 128,  # attention's scratch has a use for what the ring leaves
        "kTagBits": TAG_BITS,
        "kTraced": int(traced),
        "kStallWorker": stall_worker,
        "kStallStage": stall_stage,
        "kStallSeconds": stall_seconds,
    }
    strides, words, plain = buffer_places(program)
    lines = [
        f'#include "{"emulate.hpp" if emulated else "ptx.cuh"}"',
        '#include "program.hpp"',
        '#include "request.hpp"',
        '#include "projection.cuh"',
        "namespace monolane {",
        *constants(program, integers),
        *sampling_tables("MONOLANE_TABLE"),
        f"constexpr int kBufferStrides[] = {braces(map(str, strides))};",
        f"constexpr int kWordOffsets[] = {braces(map(str, words[:-1]))};",
        f"constexpr int kPrefillOffsets[] = {braces(map(str, plain[:-1]))};",
        *projection_types(plan),
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
    strides = [_up(sizes[buffer.name], FRAGMENT_COLS) for buffer in program.buffers]
    words, plain = [0], [0]
    for stride in strides:
        words.append(words[-1] + stride)
        plain.append(plain[-1] + stride * MAX_WIDTH)
    return strides, words, plain
