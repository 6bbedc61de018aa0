"""What a launch is given: the host's twin of csrc/launch.cuh, and the memory behind its pointers, wherever it lies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_int32, c_int64, c_uint32, c_void_p
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.program.plan import Plan
from monolane.program.sample import EXPONENT_BITS, MAX_LOGPROBS, SHARE_BITS, WEIGHT_BITS, Sampling
from monolane.program.stage import MAX_WIDTH
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda.generate import BLOCK_POSITIONS, BUCKETS, CHOICES, HISTOGRAMS, buffer_places, most_splits

LINE_BYTES = 128
ALIGNMENT = 256  # bytes, of every buffer


class Outcome(Structure):
    """What the kernel tells the host while it runs."""

    made: int
    status: int
    worker: int
    stage: int
    layer: int
    waited_for: int
    steps: int
    start_ns: int
    _fields_ = [
        *((name, c_uint32) for name in ("made", "status", "worker", "stage", "layer", "waited_for", "steps", "unused")),
        ("start_ns", c_int64),
    ]


# Words with tags, in one piece: the kernel clears it when tags run out. And what else a launch must find zeroed.
TAGGED = ("words", "qkv_words", "parts", "masses", "choices", "lists", "sums")
CLEARED = (*TAGGED, "arrived", "histograms", "failed")
_MODEL = ("tapes", "segments", "head_tiles", "table", "constants", "rotations", "keys", "values")
_SCRATCH = ("wide", "wide_qkv", "normed", "scales", "noises", "distances", "used")
_POINTERS = (*_MODEL, "logits", *CLEARED, *_SCRATCH, "entries", "outcome", "abort", "trace")


class Launch(Structure):
    _fields_ = [
        *((name, c_void_p) for name in _POINTERS),
        ("trace_from", c_int64),
        ("trace_passes", c_int64),
        ("deadline_ns", c_int64),
        ("tagged_bytes", c_int64),
        ("context", c_int32),
        ("adjusts_scores", c_int32),
        ("plain_greedy", c_int32),
        ("reach", c_uint32),
        ("zero", c_uint32),
        ("unused", c_uint32),
        ("request", structs.Request),
    ]


class Uploads(Protocol):
    """Memory the kernel sees: a device's, or, for the emulation, our own."""

    def upload(self, data: NDArray[np.generic]) -> int:
        """A copy of an array; its address."""


class Arena(Uploads, Protocol):
    def allocate(self, size: int) -> int:
        """Bytes with whatever was there before, 256-byte aligned; their address."""


def scratch_sizes(plan: Plan, context: int) -> dict[str, int]:
    """Bytes of every buffer that belongs to a loaded model and not to its weights."""
    program, shape = plan.program, plan.program.attention
    strides, words, plain = buffer_places(program)
    blocks = program.layers * shape.kv_heads * -(-context // BLOCK_POSITIONS)
    splits = MAX_WIDTH * most_splits(plan)
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return {
        "keys": blocks * BLOCK_POSITIONS * -(-shape.head_dim // 32) * 32 * 2,
        "values": blocks * BLOCK_POSITIONS * -(-shape.head_dim // 16) * 16 * 2,
        "words": 4 * words[-1],
        "qkv_words": 8 * qkv,
        "parts": 4 * splits * shape.heads * shape.head_dim,
        "masses": LINE_BYTES * splits * shape.heads,
        "choices": 8 * 2 * CHOICES * plan.workers,
        "lists": 8 * (1 + 2 * MAX_LOGPROBS) * plan.workers,
        "sums": 8 * (2 * plan.workers + 1),
        "arrived": 4,
        "histograms": 8 * HISTOGRAMS * 2 * BUCKETS,
        "failed": 4,
        "wide": 2 * plain[-1],
        "wide_qkv": 4 * qkv * MAX_WIDTH,
        "normed": 2 * MAX_WIDTH * strides[0],
        "scales": 4 * MAX_WIDTH,
        "logits": 4 * program.vocab,
        "noises": 4 * program.vocab,
        "distances": 4 * program.vocab,
        "used": 8 * program.vocab,
    }


def cleared_bytes(plan: Plan, context: int, names: tuple[str, ...] = CLEARED) -> int:
    sizes = scratch_sizes(plan, context)
    return sum(-(-sizes[name] // ALIGNMENT) * ALIGNMENT for name in names)


def rotations(plan: Plan, context: int) -> NDArray[np.float32]:
    """[position][pair][cosine, sine]"""
    angles = np.outer(np.arange(context), plan.program.attention.frequencies)
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def head_tile_addresses(plan: Plan, tapes: Sequence[int]) -> NDArray[np.uint64]:
    """Where each tile of a tied head lies."""
    last = len(plan.program.projections) - 1
    tile_bytes = plan.layout.tile_bytes(plan.program.head)
    found = [
        np.arange(segments[last].tiles, dtype=np.uint64) * np.uint64(tile_bytes)
        + np.uint64(tape + segments[last].offset)
        for tape, segments in zip(tapes, plan.segments, strict=True)
    ]
    return np.concatenate(found)


def model_launch(tape: Tape, context: int, arena: Arena, deadline_s: float) -> Launch:
    """Everything but the request and the host's memory."""
    plan = tape.plan
    tapes = [arena.upload(part) for part in tape.workers]
    launch = Launch(
        tapes=arena.upload(np.array(tapes, np.uint64)),
        segments=arena.upload(np.frombuffer(bytes(structs.segment_table(plan)), np.uint8)),
        head_tiles=arena.upload(head_tile_addresses(plan, tapes)) if tape.table is None else None,
        table=arena.upload(tape.table) if tape.table is not None else None,
        constants=arena.upload(tape.constants.values),
        rotations=arena.upload(rotations(plan, context)),
        deadline_ns=int(deadline_s * 1e9),
        tagged_bytes=cleared_bytes(plan, context, TAGGED),
        context=context,
    )
    sizes = scratch_sizes(plan, context)
    place = arena.allocate(cleared_bytes(plan, context))
    for name in CLEARED:
        setattr(launch, name, place)
        place += -(-sizes.pop(name) // ALIGNMENT) * ALIGNMENT
    # Rows of activations end in columns that nobody writes and that are multiplied with zeros: they must be numbers.
    launch.wide = arena.upload(np.zeros(sizes.pop("wide"), np.uint8))
    for name, size in sizes.items():
        setattr(launch, name, arena.allocate(size))
    return launch


def reach(sampling: Sampling, vocab: int) -> int:
    """A distance beyond which all tokens together weigh less than what top-p drops; or, for top-k alone, nothing."""
    dropped = (1 << SHARE_BITS) - sampling.top_share
    halvings = vocab.bit_length() + SHARE_BITS + 1 - dropped.bit_length() if dropped else WEIGHT_BITS + 1
    return min(-(-(halvings << EXPONENT_BITS) // max(sampling.rate, 1)), (1 << 32) - 2)


def set_request(launch: Launch, request: Request, vocab: int, arena: Uploads, scores: int | None) -> None:
    """A request whose arrays lie where the kernel sees them. ``scores``: store all logits there, sample nothing."""
    sampling = request.sampling
    launch.adjusts_scores = sampling.adjusts_logits
    launch.reach = reach(sampling, vocab)
    launch.plain_greedy = sampling.greedy and not sampling.adjusts_logits and request.logprobs is None
    bias = np.frombuffer(bytes(structs.bias_table(sampling)) or b"\0", np.uint8)  # no memory is ever empty
    stops = np.array(sorted(request.stop_tokens) or [-1], np.int32)
    launch.request = structs.Request(
        tokens=arena.upload(np.array(request.tokens, np.int32)),
        token_count=len(request.tokens),
        cached=request.cached,
        max_tokens=request.max_tokens,
        stop_tokens=arena.upload(stops),
        stop_count=len(request.stop_tokens),
        logprobs=structs.NO_LOGPROBS if request.logprobs is None else request.logprobs,
        scores=scores,
        sampling=structs.sampling_struct(sampling, arena.upload(bias)),
    )


def entry_bytes(context: int) -> int:
    return ctypes.sizeof(structs.Entry) * context
