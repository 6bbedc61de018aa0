"""The map of a thread block's shared memory: what lies where, and how many slots the ring has.

    ring | input | sums | residual | exchange | small sums | barriers | tiles owned | adjusted tokens | routes |
    reductions and flags

In a prefill pass the upper slots of the ring hold the input of its rows instead. Attention and sampling use the regions
of input and sums as scratch, because no projection runs at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from monolane.errors import UnsupportedModelError
from monolane.program.plan import Plan
from monolane.program.stage import PASS_ROWS, Output, Program
from monolane.target.cuda.constants import (
    BUCKETS,
    CONSUMER_WARPS,
    DECODE_BATCH,
    MMA_COLS,
    PAGE_TOKENS,
    TABLE_ENTRIES,
    WARPGROUPS,
)
from monolane.target.cuda.dealing import most_dealt
from monolane.target.cuda.formats import any_low_bit
from monolane.target.cuda.launch import routed
from monolane.target.cuda.layers import projection_count
from monolane.target.cuda.projections import input_cols, one_row_bytes, slot_bytes, small_rows

ALIGNMENT = 128  # bytes, of every region
EXCHANGE_BARRIER_BYTES = 64  # of mbarriers and numbers of passes between consumer warps and exchange warp
RESERVED_BYTES = 2048  # for mbarriers (their number follows from that of the slots), reductions, alignment
REDUCE_BYTES = 512  # of reductions, flags and the mailbox to the watchdog; csrc/launch.cuh has their offsets
MIN_PREFILL_SLOTS = 2
MAX_LOGITS_BYTES = 8192  # of a worker's logits, if they are kept in shared memory
SMALL_STRIDE = CONSUMER_WARPS + 4  # floats from the sums of a row to those of the next one, in other banks
BANK_SHIFT = 32  # elements of bf16 that are added to a row, so that consecutive rows start in different banks


@dataclass(frozen=True)
class SharedMemory:
    """The regions of shared memory: sizes in bytes, and offsets from its beginning."""

    slot_bytes: int
    slots: int  # of the ring in a decode pass
    prefill_slots: int
    prefill_cols: int  # the widest input that a prefill pass keeps in shared memory
    input: int
    input_bytes: int
    sums: int
    residual: int
    exchange: int
    small: int
    small_rows: int
    barriers: int
    owned: int
    adjusted: int
    routes: int
    reduce: int
    end: int
    attention: dict[str, int]  # C++ constants of attention's scratch
    sampling: dict[str, int]  # C++ constants of sampling's scratch

    def constants(self) -> dict[str, int]:
        """C++ name to value."""
        return {
            "kSlotBytes": self.slot_bytes,
            "kSlots": self.slots,
            "kPrefillSlots": self.prefill_slots,
            "kPrefillCols": self.prefill_cols,
            "kPrefillStride": self.prefill_cols + BANK_SHIFT,
            "kPrefillXOffset": self.prefill_slots * self.slot_bytes,
            "kRingBytes": self.slots * self.slot_bytes,
            "kXOffset": self.input,
            "kXBytes": self.input_bytes,
            "kSumsOffset": self.sums,
            "kResidualOffset": self.residual,
            "kExchangeOffset": self.exchange,
            "kSmallOffset": self.small,
            "kSmallRows": self.small_rows,
            "kSmallStride": SMALL_STRIDE,
            "kBarriersOffset": self.barriers,
            "kOwnOffset": self.owned,
            "kTouchedOffset": self.adjusted,
            "kRoutesOffset": self.routes,
            "kReduceOffset": self.reduce,
            "kReduceBytes": REDUCE_BYTES,
            "kExchangeBarrierBytes": EXCHANGE_BARRIER_BYTES,
            **self.attention,
            **self.sampling,
        }

    def regions(self) -> list[tuple[str, int]]:
        """The name and the bytes of every region, in order, for `monolane inspect`."""
        starts = {
            f"ring of {self.slots} slots": 0,
            "input": self.input,
            "sums": self.sums,
            "residual stream": self.residual,
            "exchange": self.exchange,
            "sums of small projections": self.small,
            "mbarriers": self.barriers,
            "tiles owned": self.owned,
            "adjusted tokens": self.adjusted,
            "routes to experts": self.routes,
            "reductions and flags": self.reduce,
        }
        ends = [*list(starts.values())[1:], self.end]
        return [(name, end - start) for (name, start), end in zip(starts.items(), ends, strict=True)]


def shared_memory(plan: Plan, limit: int) -> SharedMemory:
    """Divide ``limit`` bytes into regions; the ring gets what the other regions leave."""
    slot = slot_bytes(plan)
    besides = _besides_ring(plan)
    slots = (limit - besides) // slot
    if any_low_bit(plan.program):  # an even number: a slot belongs to one warpgroup, which waits once for each chunk
        slots -= slots % WARPGROUPS
    prefill_slots, prefill_cols = _prefill(plan, limit, slots, slot)
    spare = limit - besides - slots * slot  # it goes to the input region, where attention's scratch can use it
    input_at, input_bytes = slots * slot, _input_bytes(plan) + spare // ALIGNMENT * ALIGNMENT
    sums = input_at + input_bytes
    residual = sums + _up(_sums_bytes(plan), ALIGNMENT)
    exchange = residual + _up(4 * PASS_ROWS * owned_rows(plan), ALIGNMENT)
    small = exchange + _exchange_bytes(plan)
    barriers = small + _small_bytes(plan)
    owned = barriers + 4 * slots * 8  # full and empty, for decode and for prefill passes
    adjusted = owned + _up(8 * projection_count(plan.program), ALIGNMENT)
    routes = adjusted + _up(max_own_tokens(plan), ALIGNMENT)
    reduce = routes + _routes_bytes(plan)
    if reduce + REDUCE_BYTES > limit:
        raise ValueError(f"shared memory: {reduce + REDUCE_BYTES} bytes of {limit}; RESERVED_BYTES is too small")
    return SharedMemory(
        slot_bytes=slot,
        slots=slots,
        prefill_slots=prefill_slots,
        prefill_cols=prefill_cols,
        input=input_at,
        input_bytes=input_bytes,
        sums=sums,
        residual=residual,
        exchange=exchange,
        small=small,
        small_rows=small_rows(plan),
        barriers=barriers,
        owned=owned,
        adjusted=adjusted,
        routes=routes,
        reduce=reduce,
        end=reduce + REDUCE_BYTES,
        attention=_attention_scratch(plan, residual - input_at),
        sampling=_sampling_scratch(plan, input_at, sums, residual),
    )


def residual_projection(program: Program) -> int:
    """The index of the first projection that writes the residual stream; all of these are divided in the same way."""
    return next(i for i, stage in enumerate(program.projections) if stage.output is Output.RESIDUAL)


def owned_rows(plan: Plan) -> int:
    """The most rows of the residual stream that one worker owns."""
    residual = residual_projection(plan.program)
    return max(tape[residual].tiles for tape in plan.segments) * plan.layout.rows(plan.program.projections[residual])


def max_own_tokens(plan: Plan) -> int:
    """The most tokens of the vocabulary that one worker has."""
    return plan.layout.rows(plan.program.head) * max(tape[-1].tiles for tape in plan.segments)


def _besides_ring(plan: Plan) -> int:
    fixed = _input_bytes(plan) + _sums_bytes(plan) + 4 * PASS_ROWS * owned_rows(plan) + RESERVED_BYTES
    fixed += _routes_bytes(plan) + _small_bytes(plan)
    return fixed + _exchange_bytes(plan) + 8 * projection_count(plan.program) + _up(max_own_tokens(plan), ALIGNMENT)


def _exchange_bytes(plan: Plan) -> int:
    """Bytes of what consumer warps and exchange warp hand each other, and of sums over experts that are not exchanged
    yet; csrc/exchange.cuh has its parts."""
    if plan.program.lanes == 1:
        return 0
    rows = 4 + (PASS_ROWS if routed(plan.program) else 0)
    return _up(EXCHANGE_BARRIER_BYTES + 4 * rows * owned_rows(plan), ALIGNMENT)


def _small_bytes(plan: Plan) -> int:
    """Bytes of the sums of small projections, and of the sums of squares, for two stages in a row; small_sums() in
    csrc/small_product.cuh has their places."""
    rows = small_rows(plan)
    return _up(2 * 4 * (rows * SMALL_STRIDE + CONSUMER_WARPS), ALIGNMENT) if rows else 0


def _routes_bytes(plan: Plan) -> int:
    """Bytes of the choice of experts, Routes in csrc/route.cuh. It has for each tile that a worker is dealt 16 bytes,
    for each logit 4, for each expert 4 and a bit, for each row of a pass 6 bytes for every chosen expert and 4 more,
    and 2 for every chosen expert."""
    logits = routed(plan.program)
    if not logits:
        return 0
    chosen = max(stage.chosen for stage in plan.program.projections)
    of_experts = 4 * logits + 4 * logits + 4 * -(-logits // 32)
    return _up(16 * most_dealt(plan) + of_experts + PASS_ROWS * (6 * chosen + 4) + 2 * chosen + 48, ALIGNMENT)


def _prefill(plan: Plan, limit: int, slots: int, slot: int) -> tuple[int, int]:
    """The slots of the ring in a prefill pass, and the widest input that fits in the other slots. These also hold the
    cache page of the pass's rows during attention."""
    columns = sorted({input_cols(plan, stage) for stage in plan.program.projections})
    head_dim = plan.program.attention.head_dim
    page = PAGE_TOKENS * (_up(head_dim, 32) + _up(head_dim, 16)) * 2
    for widest in (*reversed(columns), 0):
        left = slots - -(-max(PASS_ROWS * (widest + BANK_SHIFT) * 2, page) // slot)
        if left >= MIN_PREFILL_SLOTS:
            return left, widest
    raise UnsupportedModelError(
        f"Matrices of {columns[-1]:,} columns do not fit the {limit:,} bytes of shared memory of this GPU.",
        "Use a smaller model, or device='cpu'.",
    )


def _input_bytes(plan: Plan) -> int:
    """Bytes of the input region. Together with the sums it also holds the scratch of attention and of sampling."""
    scratch = _attention_offsets(plan)["kAccumulatorsOffset"] + _accumulators_bytes(plan)
    chunk = slot_bytes(plan) // plan.layout.tile_rows  # bytes of a row of bf16
    widest = max(_up(one_row_bytes(plan, stage), chunk) for stage in plan.program.projections)
    return _up(max(widest, scratch - _sums_bytes(plan), _sampling_bytes(plan)), ALIGNMENT)


def _attention_offsets(plan: Plan) -> dict[str, int]:
    """Offsets in attention's scratch: queries; the new key and value; probability and row max of the new token; row max
    and row sum of every warp; accumulators of as many warps as there is room for."""
    head_dim = plan.program.attention.head_dim
    stride = _up(head_dim, 64) + BANK_SHIFT
    new_kv = PASS_ROWS * stride * 2
    new_stats = new_kv + 2 * _up(head_dim, 32) * 2
    row_maxes = new_stats + 2 * PASS_ROWS * 4
    return {
        "kQueryStride": stride,
        "kNewKvOffset": new_kv,
        "kNewStatsOffset": new_stats,
        "kRowMaxesOffset": row_maxes,
        "kAccumulatorsOffset": row_maxes + 2 * CONSUMER_WARPS * PASS_ROWS * 4,
    }


def _accumulators_bytes(plan: Plan) -> int:
    """Bytes of one warp's accumulators."""
    return PASS_ROWS * _up(plan.program.attention.head_dim, 32) * 4


def _attention_scratch(plan: Plan, size: int) -> dict[str, int]:
    return _attention_offsets(plan) | {"kAttendBytes": size}


def _sampling_tables_bytes(plan: Plan) -> int:
    """Bytes of the three tables of sampling and of one rank per worker."""
    return 3 * TABLE_ENTRIES * 8 + _up(8 * plan.workers * plan.program.lanes, ALIGNMENT)


def _head_input_bytes(plan: Plan) -> int:
    """Bytes of the head's input. The tables overwrite it later, and the logits lie behind both."""
    return one_row_bytes(plan, plan.program.head)


def _sampling_bytes(plan: Plan) -> int:
    """Bytes of the input region that sampling needs. Logits of more than MAX_LOGITS_BYTES do not count: they may lie in
    global memory."""
    tables, logits = _sampling_tables_bytes(plan), _up(4 * max_own_tokens(plan), ALIGNMENT)
    return max(tables, _head_input_bytes(plan)) + logits if logits <= MAX_LOGITS_BYTES else tables


def _sums_bytes(plan: Plan) -> int:
    """Bytes of the sums of a batch of tiles: twice as many where weights are integers (csrc/sums.cuh)."""
    integers = any(stage.matrix.format.is_integer for stage in plan.program.projections)
    return 4 * DECODE_BATCH * CONSUMER_WARPS * MMA_COLS * (1 + integers)


def _sampling_scratch(plan: Plan, input_at: int, sums: int, residual: int) -> dict[str, int]:
    """Offsets in sampling's scratch: tables and ranks first, then logits, buckets, and noise where it fits."""
    tables = _sampling_tables_bytes(plan)
    logits = input_at + _up(max(tables, _head_input_bytes(plan)), ALIGNMENT)
    logits_end = logits + _up(4 * max_own_tokens(plan), ALIGNMENT)
    fits = logits_end <= sums
    buckets = logits_end if fits else input_at + tables
    noise = buckets + 2 * BUCKETS * 8
    return {
        "kLogitsOffset": logits,
        "kLogitsFit": int(fits),
        "kBucketsOffset": buckets,
        "kNoiseOffset": noise,
        "kNoiseFits": int(noise + 4 * max_own_tokens(plan) <= residual),
    }


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
