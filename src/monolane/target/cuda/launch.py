"""The struct of a launch, which the kernel reads from constant memory, and the buffers that its pointers point to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import Structure, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.program.plan import Plan
from monolane.program.sample import EXPONENT_BITS, MAX_LOGPROBS, SHARE_BITS, WEIGHT_BITS, Sampling
from monolane.program.stage import PASS_ROWS, Program
from monolane.program.tape import Tape
from monolane.target import cpp, structs
from monolane.target.base import Request
from monolane.target.cuda import exchange
from monolane.target.cuda.constants import (
    BUCKETS,
    FRAGMENT_COLS,
    FUSED_SPLITS,
    FUSED_WORDS,
    HISTOGRAMS,
    LINE_BYTES,
    PAGE_TOKENS,
)

ALIGNMENT = 256  # bytes, of every buffer


class WaitReason(IntEnum):
    """What a worker waits for; part of the error where it waits too long."""

    WAIT_COPY = 0
    WAIT_ACTIVATIONS = 1
    WAIT_BARRIER = 2
    WAIT_TOKEN = 3
    WAIT_LANES = 4


class Published(IntEnum):
    """Numbers that every worker publishes while a token is chosen. csrc/draw.cuh uses the last six."""

    BEST = 0  # the rank of its best token, with penalties and biases
    LIKELIEST = 1  # the rank of its best token by logits alone, for logprobs
    FIRST = 2  # the race key of its token with the lowest time
    FIRST_AGAIN = 3  # the same in the second race
    FIRST_EXACTLY = 4  # the same in the race with the exact border
    DISTANCE = 5  # the distance of the token of FIRST
    NEARER = 6  # the number of its tokens that are nearer than a winner in doubt
    NEARER_WEIGHT = 7  # the weight of these tokens


class Outcome(Structure):
    """What the kernel writes to host memory while it runs, besides tokens."""

    made: int
    status: int
    worker: int
    stage: int
    layer: int
    waited_for: int
    steps: int
    start_ns: int
    _fields_ = [
        ("made", c_uint32),  # tokens generated so far
        ("status", c_uint32),
        ("worker", c_uint32),  # this and the next three describe a wait that took too long
        ("stage", c_uint32),
        ("layer", c_uint32),
        ("waited_for", c_uint32),
        ("steps", c_uint32),  # stages begun, updated now and then, for watchdogs
        ("unused", c_uint32),
        ("start_ns", c_int64),  # when the kernel started, on the clock of the device
    ]


class TokenUse(Structure):
    """What penalties and biases need to know about a token."""

    _fields_ = [
        ("count", c_int32),  # occurrences in the answer, plus kSeen if the token is in the prompt or the answer
        ("bias", c_int32),
    ]


class TopList(Structure):
    """The ranks of a worker's tokens that may be among the likeliest, the highest first, as tagged words."""

    _fields_ = [("count", c_uint64), ("ranks", c_uint64 * (2 * MAX_LOGPROBS))]


# Buffers by name, with the C++ type of their elements; _elements() has their sizes. First those that all lanes share.
_MODEL = {
    "segments": "const Segment",  # [worker of a lane][projection]
    "head_tiles": "const uint8_t* const",  # the address of each tile of a tied head; null where there is a table
    "table": "const uint16_t",  # the embedding, where the head is not tied to it
    "rope_table": "const float",  # [position][head_dim / 2][cosine, sine]
}
# Tagged words: the upper half of a word is a value, the lower half its tag. They are contiguous, and the kernel clears
# them when tags run out. Those of sampling are shared, those of activations are each lane's own.
_TAGGED = {
    "published": "uint64_t",  # [worker][Published][2]
    "top_lists": "TopList",  # [worker]
    "logprob_sums": "uint64_t",  # [worker][2]: the sum of its weights; then the chosen token's fixed-point logit
}
_CLEARED = _TAGGED | {  # contiguous buffers that are zeroed before a launch
    "grid_arrivals": "uint32_t",  # the counter of the grid barrier
    "histograms": "uint64_t",  # [HISTOGRAMS][weights, counts][BUCKETS]
    "failed": "uint32_t",  # not 0: a worker is stuck, and all workers leave
}
_SCRATCH = {
    "logits": "float",
    "noise": "uint32_t",  # [token], where shared memory has no room for it
    "distances": "uint32_t",  # [token], where shared memory has no room for them
    "token_use": "TokenUse",  # [token], each read and written only by the worker that owns the token
}
_HOST = {  # in pinned host memory, except the trace
    "entries": "Entry",
    "outcome": "Outcome",
    "abort": "const uint32_t",
    "trace": "int64_t",  # time stamps of a traced kernel, in ns: [pass][worker][stage][began, had its input, ended]
}
_LANE_MODEL = {
    "tapes": "const uint8_t* const",  # [worker of the lane]
    "constants": "const float",  # norm weights and biases
    "keys": "uint16_t",  # [layer][KV head][page], see csrc/cache.cuh
    "values": "uint16_t",
}
_LANE_TAGGED = {
    "activation_words": "uint32_t",  # activations of a decode pass, bf16
    "qkv_words": "uint64_t",  # queries, keys and values of a decode pass, fp32
    "partial_outputs": "uint32_t",  # [row of the pass][split][query dimension]: attention's output of a split, bf16
    "split_lses": "uint64_t",  # [row of the pass][split][query head], each in an L2 line of its own: its LSE, fp32
    "mailbox": "uint64_t",  # what other lanes send, fp32, see csrc/exchange.cuh
}
_LANE_CLEARED = _LANE_TAGGED | {"lane_arrivals": "uint32_t"}  # the counter of the lane's barrier
_LANE_SCRATCH = {
    "prefill_activations": "uint16_t",  # activations of a prefill pass, bf16, without tags
    "prefill_qkv": "float",  # [row of the pass][queries, keys, values]
    "prefill_normed": "uint16_t",  # [row of the pass]: the input of a norm where shared memory has no room for it
    "prefill_scales": "uint32_t",  # [row of the pass]: the scale of that norm, fp32
}
_SHARED: Mapping[str, str] = _MODEL | _CLEARED | _SCRATCH | _HOST
_LANE: Mapping[str, str] = _LANE_MODEL | _LANE_CLEARED | _LANE_SCRATCH
_ELEMENT_BYTES = {"uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "float": 4} | {
    kind.__name__: ctypes.sizeof(kind) for kind in (TokenUse, TopList)
}
MAX_LANES = 16


@cpp.pointers(**{name: f"{element}*" for name, element in _LANE.items()})
class LaneBuffers(Structure):
    """The memory of one lane."""

    _fields_ = [(name, c_void_p) for name in _LANE]


@cpp.pointers(**{name: f"{element}*" for name, element in _SHARED.items()})
class Launch(Structure):
    lanes: Sequence[LaneBuffers]
    _fields_ = [
        *((name, c_void_p) for name in _SHARED),
        ("trace_from", c_int64),  # the first decode pass that is traced
        ("trace_passes", c_int64),
        ("deadline_ns", c_int64),
        ("tagged_bytes", c_int64),
        ("lane_tagged_bytes", c_int64),
        ("context", c_int32),
        ("adjusts_logits", c_int32),  # whether penalties or biases change any logit
        ("plain_greedy", c_int32),  # greedy without penalties, biases and logprobs: only the highest logit is needed
        ("reach", c_uint32),  # see reach()
        ("zero", c_uint32),  # always 0, which the compiler must not know: see Cursor::release in csrc/ring.cuh
        ("unused", c_uint32),
        ("request", structs.Request),
        ("lanes", LaneBuffers * MAX_LANES),
    ]


def definitions() -> list[str]:
    """The C++ definitions of all of these."""
    return [
        cpp.enum(WaitReason),
        cpp.enum(Published),
        f"constexpr int kPublishedCount = {len(Published)};",
        *(line for kind in (Outcome, TokenUse, TopList, LaneBuffers, Launch) for line in cpp.struct(kind)),
    ]


class Uploads(Protocol):
    """Memory that the kernel accesses: that of a device or, for the emulation, that of this process."""

    def upload(self, data: NDArray[np.generic]) -> int:
        """Copy an array there; returns its address."""


class Arena(Uploads, Protocol):
    def allocate(self, size: int) -> int:
        """Allocate bytes of undefined content, aligned to 256; returns their address."""


def max_splits(plan: Plan) -> int:
    most = plan.program.attention.splitting.most
    if most is None:
        raise ValueError("this program was built for another target: its attention has splits of a fixed length")
    return most


def fused_splits(plan: Plan) -> int:
    """The most splits that the projection after attention merges while it loads its input."""
    shape = plan.program.attention
    if shape.head_dim % 4:
        return 1
    return max(1, min(FUSED_SPLITS, max_splits(plan), FUSED_WORDS // (shape.heads * shape.head_dim)))


def buffer_places(program: Program) -> tuple[list[int], list[int], list[int]]:
    """For each buffer of the program: its elements per row, its offset among the tagged words of a decode pass, and its
    offset among the plain elements of a prefill pass. The last two lists end with the size in all."""
    shape = program.attention
    sizes = {buffer.name: buffer.size for buffer in program.buffers}
    sizes["partials"] = shape.heads * shape.head_dim  # on a GPU this buffer holds the merged output of attention
    strides = [-(-sizes[buffer.name] // FRAGMENT_COLS) * FRAGMENT_COLS for buffer in program.buffers]
    words, plain = [0], [0]
    for stride in strides:
        words.append(words[-1] + stride)
        plain.append(plain[-1] + stride * PASS_ROWS)
    return strides, words, plain


def _sizes(elements: Mapping[str, int]) -> dict[str, int]:
    """Bytes of buffers, from their numbers of elements."""
    return {name: _ELEMENT_BYTES[(_SHARED | _LANE)[name]] * count for name, count in elements.items()}


def _shared_sizes(plan: Plan) -> dict[str, int]:
    """Bytes of the buffers that all lanes share, apart from those of the model."""
    vocab, workers = plan.program.vocab, plan.workers * plan.program.lanes
    return _sizes(
        {
            "published": workers * len(Published) * 2,
            "top_lists": workers,
            "logprob_sums": 2 * workers + 1,
            "grid_arrivals": 1,
            "histograms": HISTOGRAMS * 2 * BUCKETS,
            "failed": 1,
            "logits": vocab,
            "noise": vocab,
            "distances": vocab,
            "token_use": vocab,
        }
    )


def _lane_sizes(plan: Plan, context: int) -> dict[str, int]:
    """Bytes of the buffers of one lane, apart from its weights."""
    program, shape = plan.program, plan.program.attention
    strides, words, plain = buffer_places(program)
    row_splits = PASS_ROWS * max_splits(plan)
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    keys, values = cache_sizes(plan, context)
    return {"keys": keys, "values": values} | _sizes(
        {
            "activation_words": words[-1],
            "qkv_words": qkv,
            "partial_outputs": row_splits * shape.heads * shape.head_dim,
            "split_lses": row_splits * shape.heads * (LINE_BYTES // 8),
            "mailbox": exchange.slots(program) * program.lanes * PASS_ROWS * program.hidden,
            "lane_arrivals": 1,
            "prefill_activations": plain[-1],
            "prefill_qkv": PASS_ROWS * qkv,
            "prefill_normed": PASS_ROWS * strides[0],
            "prefill_scales": PASS_ROWS,
        }
    )


def cache_sizes(plan: Plan, context: int) -> tuple[int, int]:
    """Bytes of the keys and of the values of one lane's KV cache."""
    program, shape = plan.program, plan.program.attention
    page_rows = program.layers * shape.kv_heads * -(-context // PAGE_TOKENS) * PAGE_TOKENS
    return 2 * page_rows * -(-shape.head_dim // 32) * 32, 2 * page_rows * -(-shape.head_dim // 16) * 16


def scratch_bytes(plan: Plan, context: int) -> int:
    """Bytes of all buffers of a loaded model with one KV cache, apart from its weights."""
    return sum(_shared_sizes(plan).values()) + plan.program.lanes * sum(_lane_sizes(plan, context).values())


def _aligned_bytes(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(-(-sizes[name] // ALIGNMENT) * ALIGNMENT for name in names)


def cleared_bytes(plan: Plan, context: int) -> int:
    """Bytes from ``Launch.published`` on that are zeroed before a launch: shared ones, then those of each lane."""
    lane = _aligned_bytes(_lane_sizes(plan, context), _LANE_CLEARED)
    return _aligned_bytes(_shared_sizes(plan), _CLEARED) + plan.program.lanes * lane


def rope_table(plan: Plan, context: int) -> NDArray[np.float32]:
    """The RoPE coefficients: [position][pair][cosine, sine]."""
    angles = np.outer(np.arange(context), plan.program.attention.frequencies)
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def head_tile_addresses(plan: Plan, tapes: Sequence[int]) -> NDArray[np.uint64]:
    """The address of each tile of a tied head. ``tapes``: the address of each worker's tape."""
    last = len(plan.program.projections) - 1
    tile_bytes = plan.layout.tile_bytes(plan.program.head)
    found = [
        np.arange(segments[last].tiles, dtype=np.uint64) * np.uint64(tile_bytes)
        + np.uint64(tape + segments[last].offset)
        for tape, segments in zip(tapes, plan.segments, strict=True)
    ]
    return np.concatenate(found)


def model_launch(tapes: Sequence[Tape], context: int, arena: Arena, deadline_s: float) -> Launch:
    """Copy the tapes of all lanes to the device and allocate all buffers. The request and the host's memory are not
    filled in."""
    plan, table = tapes[0].plan, tapes[0].table
    parts = [[arena.upload(part) for part in tape.workers] for tape in tapes]
    shared, of_lane = _shared_sizes(plan), _lane_sizes(plan, context)
    launch = Launch(
        segments=arena.upload(np.frombuffer(bytes(structs.segment_table(plan)), np.uint8)),
        head_tiles=arena.upload(head_tile_addresses(plan, parts[0])) if table is None else None,
        table=arena.upload(table) if table is not None else None,
        rope_table=arena.upload(rope_table(plan, context)),
        deadline_ns=int(deadline_s * 1e9),
        tagged_bytes=_aligned_bytes(shared, _TAGGED),
        lane_tagged_bytes=_aligned_bytes(of_lane, _LANE_TAGGED),
        context=context,
    )
    place = _place(launch, _CLEARED, shared, arena.allocate(cleared_bytes(plan, context)))
    for name in _SCRATCH:
        setattr(launch, name, arena.allocate(shared[name]))
    for number, tape in enumerate(tapes):
        lane = launch.lanes[number]
        lane.tapes = arena.upload(np.array(parts[number], np.uint64))
        lane.constants = arena.upload(tape.constants.values)
        place = _place(lane, _LANE_CLEARED, of_lane, place)
        # Rows of activations end in padding that no worker writes and that is multiplied with zeros: it must not be
        # NaN.
        lane.prefill_activations = arena.upload(np.zeros(of_lane["prefill_activations"], np.uint8))
        for name in ("keys", "values", "prefill_qkv", "prefill_normed", "prefill_scales"):
            setattr(lane, name, arena.allocate(of_lane[name]))
    return launch


def _place(struct: Structure, names: Iterable[str], sizes: Mapping[str, int], place: int) -> int:
    """Set pointers to buffers one after the other from ``place`` on; returns the place behind them."""
    for name in names:
        setattr(struct, name, place)
        place += -(-sizes[name] // ALIGNMENT) * ALIGNMENT
    return place


def reach(sampling: Sampling, vocab: int) -> int:
    """A distance beyond which all tokens together weigh less than top-p drops or, without top-p, every weight is 0."""
    dropped = (1 << SHARE_BITS) - sampling.top_share
    halvings = vocab.bit_length() + SHARE_BITS + 1 - dropped.bit_length() if dropped else WEIGHT_BITS + 1
    return min(-(-(halvings << EXPONENT_BITS) // max(sampling.rate, 1)), (1 << 32) - 2)


def set_request(launch: Launch, request: Request, vocab: int, arena: Uploads, all_logits: int | None) -> None:
    """Fill in a request and copy its arrays to the device. ``all_logits``: the address where the kernel stores the
    logits after every token; it samples nothing then."""
    sampling = request.sampling
    launch.adjusts_logits = sampling.adjusts_logits
    launch.reach = reach(sampling, vocab)
    launch.plain_greedy = sampling.greedy and not sampling.adjusts_logits and request.logprobs is None
    bias = np.frombuffer(bytes(structs.bias_table(sampling)) or b"\0", np.uint8)  # an array of 0 bytes cannot be copied
    stops = np.array(sorted(request.stop_tokens) or [-1], np.int32)
    launch.request = structs.Request(
        tokens=arena.upload(np.array(request.tokens, np.int32)),
        token_count=len(request.tokens),
        cached=request.cached,
        max_tokens=request.max_tokens,
        stop_tokens=arena.upload(stops),
        stop_count=len(request.stop_tokens),
        logprobs=structs.NO_LOGPROBS if request.logprobs is None else request.logprobs,
        all_logits=all_logits,
        sampling=structs.sampling_struct(sampling, arena.upload(bias)),
    )


def entry_bytes(context: int) -> int:
    return ctypes.sizeof(structs.Entry) * context
