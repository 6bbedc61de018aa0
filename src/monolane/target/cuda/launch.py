"""The struct of a launch, which the kernel reads from constant memory, and the buffers that its pointers point to."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import Structure, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import BLOCK
from monolane.program.plan import Plan
from monolane.program.sample import EXPONENT_BITS, MAX_LOGPROBS, SHARE_BITS, WEIGHT_BITS, Sampling
from monolane.program.stage import PASS_ROWS, Merge, Output, Program
from monolane.program.tape import constant_offsets
from monolane.target import cpp, structs
from monolane.target.base import Request
from monolane.target.cpp import braces
from monolane.target.cuda import exchange
from monolane.target.cuda.constants import (
    BUCKETS,
    FRAGMENT_COLS,
    FUSED_PAGES,
    FUSED_SPLITS,
    FUSED_WORDS,
    HISTOGRAMS,
    LINE_BYTES,
    PAGE_TOKENS,
)
from monolane.target.cuda.dealing import DealtTile
from monolane.target.cuda.formats import any_low_bit

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
    step: int
    start_ns: int
    _fields_ = [
        ("made", c_uint32),  # tokens generated so far
        ("status", c_uint32),
        ("worker", c_uint32),  # this, the next three and ``step`` describe a wait that took too long
        ("stage", c_uint32),
        ("layer", c_uint32),
        ("waited_for", c_uint32),
        ("steps", c_uint32),  # stages begun, updated now and then, for watchdogs
        ("step", c_uint32),  # stages that the worker had begun
        ("start_ns", c_int64),  # when the kernel started, on the clock of the device
    ]

    def report(self) -> dict[str, int]:
        """Which worker waited too long, where, and for what."""
        return {name: int(getattr(self, name)) for name in ("worker", "stage", "layer", "waited_for", "step")}


class TokenUse(Structure):
    """What penalties and biases need to know about a token."""

    _fields_ = [
        ("count", c_int32),  # occurrences in the answer, plus kSeen if the token is in the prompt or the answer
        ("bias", c_int32),
    ]


class TopList(Structure):
    """The ranks of a worker's tokens that may be among the likeliest, the highest first, as tagged words."""

    _fields_ = [("count", c_uint64), ("ranks", c_uint64 * (2 * MAX_LOGPROBS))]


# Buffers by name, with the C++ type of their elements. Those of _lane_elements() hold one lane after the other.
_MODEL = {
    "tapes": "const uint8_t* const",  # [worker of the launch]
    "segments": "const Segment",  # [worker of a lane][projection]
    "dealt_tiles": "const DealtTile",  # [layer][worker of a lane][tile], where there are experts
    "head_tiles": "const uint8_t* const",  # the address of each tile of a tied head; null where there is a table
    "table": "const uint8_t",  # the embedding, where the head is not tied to it
    "constants": "const float",  # [lane]: norm weights and biases
    "rope_table": "const float",  # [position][head_dim / 2][cosine, sine]
    "keys": "uint16_t",  # [lane][layer][KV head][page], see csrc/cache.cuh
    "values": "uint16_t",
}
# Tagged words: the upper half of a word is a value, the lower half its tag. They are contiguous, and the kernel clears
# them when tags run out.
TAGGED = {
    "activation_words": "uint32_t",  # activations of a decode pass, bf16
    "qkv_words": "uint64_t",  # queries, keys and values of a decode pass, fp32
    "routed_words": "uint64_t",  # the logits of experts in a decode pass, fp32
    "partial_outputs": "uint32_t",  # [row of the pass][split][query dimension]: attention's output of a split, bf16
    "split_lses": "uint64_t",  # [row of the pass][split][query head], each in an L2 line of its own: its LSE, fp32
    "mailbox": "uint64_t",  # what other lanes send, fp32, see csrc/exchange.cuh
    "published": "uint64_t",  # [worker of the launch][Published][2]
    "lane_published": "uint64_t",  # [lane][Published][2], where lanes are apart
    "top_lists": "TopList",  # [worker]
    "logprob_sums": "uint64_t",  # [worker][2]: the sum of its weights; then the chosen token's fixed-point logit
}
CLEARED = TAGGED | {  # contiguous buffers that are zeroed before a launch
    "grid_arrivals": "uint32_t",  # the counter of the grid barrier
    "lane_arrivals": "uint32_t",  # [lane]: the counter of its barrier, in an L2 line of its own
    "histograms": "uint64_t",  # [HISTOGRAMS][weights, counts][BUCKETS]
    "bucket_words": "uint64_t",  # [2][lane][BUCKETS][4]: tagged words of histograms, where lanes are apart
    "failed": "uint32_t",  # not 0: a worker is stuck, and all workers leave
}
# The memory of hand-offs. Where lanes are apart, all lanes store to it, and each has it in the same order.
HANDOFFS = CLEARED | {
    "meetings": "uint64_t",  # [lane], each in an L2 line of its own: see meet_lanes() of csrc/handoff.cuh
}
_SCRATCH = {
    "prefill_activations": "uint16_t",  # activations of a prefill pass, bf16, without tags
    "prefill_qkv": "float",  # [row of the pass][queries, keys, values]
    "prefill_routed": "float",  # [row of the pass][logit of an expert]
    "prefill_normed": "uint16_t",  # [row of the pass]: a prepared input that shared memory has no room for
    "prefill_scales": "uint32_t",  # [row of the pass]: the scale of that norm, fp32
    "noise": "uint32_t",  # [token], where shared memory has no room for it
    "distances": "uint32_t",  # [token], where shared memory has no room for them
    "token_use": "TokenUse",  # [token], each read and written only by the worker that owns the token
}
_HOST = {  # in pinned host memory, except the last two
    "entries": "Entry",
    "outcome": "Outcome",
    "abort": "const uint32_t",
    # Of a traced kernel, for the workers of the launch, in ns:
    "trace": "int64_t",  # [pass][worker][stage][began, had its input, ended]
    "lane_waits": "int64_t",  # [pass][worker][stage]: the time that it waited for other lanes
}
_BUFFERS: Mapping[str, str] = _MODEL | {"logits": "float"} | HANDOFFS | _SCRATCH | _HOST
_OF_LANES = ("lane_published", "bucket_words", "meetings", "lane_waits")  # used where there are several
_ELEMENT_BYTES = {"uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "float": 4} | {
    kind.__name__: ctypes.sizeof(kind) for kind in (TokenUse, TopList)
}
MAX_LANES = 16


@cpp.pointers(**{name: f"{element}*" for name, element in _BUFFERS.items()})
class Launch(Structure):
    _fields_ = [
        *((name, c_void_p) for name in _BUFFERS if name not in _OF_LANES),
        ("trace_from", c_int64),  # the first decode pass that is traced
        ("trace_passes", c_int64),
        ("deadline_ns", c_int64),
        ("tagged_bytes", c_int64),
        ("context", c_int32),
        ("adjusts_logits", c_int32),  # whether penalties or biases change any logit
        ("plain_greedy", c_int32),  # greedy without penalties, biases and logprobs: only the highest logit is needed
        ("reach", c_uint32),  # see reach()
        ("zero", c_uint32),  # always 0, which the compiler must not know: see Cursor::release in csrc/ring.cuh
        ("lane", c_uint32),  # the lane of this launch, where lanes are apart
        ("request", structs.Request),
        *((name, c_void_p) for name in _OF_LANES),
        ("peers", c_int64 * MAX_LANES),  # bytes from the memory of hand-offs of this launch to that of each lane
        ("number", c_int64),  # of the request: the same on all lanes, higher than those before
    ]


def definitions() -> list[str]:
    """The C++ definitions of all of these."""
    return [
        cpp.enum(WaitReason),
        cpp.enum(Published),
        f"constexpr int kPublishedCount = {len(Published)};",
        *(line for kind in (Outcome, TokenUse, TopList, DealtTile, Launch) for line in cpp.struct(kind)),
    ]


class Uploads(Protocol):
    """Memory that the kernel accesses: that of a device or, for the emulation, that of this process."""

    def upload(self, data: NDArray[np.generic]) -> int:
        """Copy an array there; returns its address."""


class Arena(Uploads, Protocol):
    def allocate(self, size: int) -> int:
        """Allocate bytes of undefined content, aligned to 256; returns their address."""

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        """Copy a contiguous array there, and wait for the copy."""


def max_splits(plan: Plan) -> int:
    most = plan.program.attention.splitting.most
    if most is None:
        raise ValueError("this program was built for another target: its attention has splits of a fixed length")
    return most


def fused_splits(plan: Plan) -> int:
    """The most splits that the projection after attention merges while it loads its input."""
    shape = plan.program.attention
    if shape.head_dim % 4 or any(stage.order for stage in plan.program.projections if isinstance(stage.input, Merge)):
        return 1
    within_pages, within_words = FUSED_PAGES * PAGE_TOKENS // shape.split, FUSED_WORDS // (shape.heads * shape.head_dim)
    return max(1, min(FUSED_SPLITS, max_splits(plan), within_pages, within_words))


def buffer_places(program: Program) -> tuple[list[int], list[int], list[int]]:
    """For each buffer of the program: its elements per row, its offset among the tagged words of a decode pass, and its
    offset among the plain elements of a prefill pass. The last two lists end with the size in all."""
    shape = program.attention
    sizes = {buffer.name: buffer.size for buffer in program.buffers}
    sizes["partials"] = shape.heads * shape.head_dim  # on a GPU this buffer holds the merged output of attention
    unit = 2 * BLOCK if any_low_bit(program) else FRAGMENT_COLS  # the widest fragment
    for stage in program.projections:
        if stage.matrix.experts > 1 and stage.output is Output.RESIDUAL:  # the input of each expert is padded
            sizes[stage.reads] = stage.chosen * -(-stage.matrix.cols // unit) * unit
    strides = [-(-sizes[buffer.name] // unit) * unit for buffer in program.buffers]
    words, plain = [0], [0]
    for stride in strides:
        words.append(words[-1] + stride)
        plain.append(plain[-1] + stride * PASS_ROWS)
    return strides, words, plain


def routed(program: Program) -> int:
    """The logits of a layer's experts; 0 where there are none."""
    return max((stage.routing.first + stage.routing.count for stage in program.projections if stage.routing), default=0)


def scratch_sizes(plan: Plan, context: int, lanes: int) -> dict[str, int]:
    """Bytes of every buffer of a launch with so many lanes of a loaded model (all, or one), apart from its weights."""
    elements = {name: count * lanes for name, count in _lane_elements(plan).items()} | _shared_elements(plan, lanes)
    page_rows = lanes * cache_rows(plan.program) * -(-context // PAGE_TOKENS) * PAGE_TOKENS
    elements["keys"] = page_rows * -(-plan.program.attention.head_dim // 32) * 32
    elements["values"] = page_rows * -(-plan.program.attention.head_dim // 16) * 16
    return {name: _ELEMENT_BYTES[_BUFFERS[name]] * count for name, count in elements.items()}


def cache_rows(program: Program) -> int:
    """KV heads of all layers of a lane: each has a row of pages in the KV cache."""
    return program.layers * program.attention.kv_heads


def _lane_elements(plan: Plan) -> dict[str, int]:
    """Elements of the buffers that every lane has for itself."""
    program, shape = plan.program, plan.program.attention
    strides, words, plain = buffer_places(program)
    row_splits = PASS_ROWS * max_splits(plan)
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    places = {buffer.name: place for place, buffer in enumerate(program.buffers)}
    ordered = [strides[places[stage.reads]] for stage in program.projections if stage.order]
    found = {
        "activation_words": words[-1],
        "qkv_words": qkv,
        "routed_words": routed(program),
        "partial_outputs": row_splits * strides[places["partials"]],
        "split_lses": row_splits * shape.heads * (LINE_BYTES // 8),
        "mailbox": exchange.slots(program) * program.lanes * PASS_ROWS * program.hidden,
        "lane_arrivals": LINE_BYTES // 4,
        "prefill_activations": plain[-1],
        "prefill_qkv": PASS_ROWS * qkv,
        "prefill_routed": PASS_ROWS * routed(program),
        "prefill_normed": PASS_ROWS * max([strides[0], *ordered]),
        "prefill_scales": PASS_ROWS,
    }
    # The words of a lane begin at a multiple of 16 bytes: some are read four at a time.
    return {name: -(-count // 8) * 8 for name, count in found.items()}


def _shared_elements(plan: Plan, lanes: int) -> dict[str, int]:
    """Elements of the buffers that a launch with so many lanes has once."""
    vocab, workers = plan.program.vocab, plan.workers * plan.program.lanes
    apart = plan.program.lanes if lanes < plan.program.lanes else 0
    return {
        "published": plan.workers * lanes * len(Published) * 2,
        "lane_published": apart * len(Published) * 2,
        "bucket_words": 2 * apart * BUCKETS * 4,
        "meetings": apart * LINE_BYTES // 8,
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


def lane_buffers(plan: Plan) -> list[str]:
    """C++ for the addresses of a lane's own buffers. The compiler knows how far lanes lie apart: an address takes a
    multiplication, where a table of addresses would take a load."""
    _, constants = constant_offsets(plan.program)
    strides = {"constants": constants} | _lane_elements(plan)
    return [
        "struct LaneBuffers {",
        *(f"  {_BUFFERS[name]}* {name};" for name in strides),
        "};",
        "MONOLANE_DEVICE LaneBuffers buffers_of(const Launch& launch, int64_t lane) {",
        f"  return {braces(f'launch.{name} + lane * {stride}' for name, stride in strides.items())};",
        "}",
    ]


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
