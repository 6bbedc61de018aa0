"""Structs that host and kernel share on every compiled target: those of a request and of a generated token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum

from monolane.program import sample
from monolane.program.plan import Plan
from monolane.target import cpp
from monolane.target.base import Finish, Token

NO_LOGPROBS = -1


class Status(IntEnum):
    """The state of a request: running, or how it ended."""

    RUNNING = 0
    STOPPED = 1
    LENGTH_REACHED = 2
    ABORTED = 3
    STUCK = 4
    NOT_A_NUMBER = 5


FINISHES = {Status.STOPPED: Finish.STOP, Status.LENGTH_REACHED: Finish.LENGTH, Status.ABORTED: Finish.ABORT}


class Segment(Structure):
    """One worker's share of one matrix: consecutive tiles at a byte offset of its tape."""

    _fields_ = [("first_tile", c_int64), ("tiles", c_int64), ("offset", c_int64)]


class Bias(Structure):
    """An entry of logit_bias."""

    _fields_ = [("token", c_int32), ("unused", c_int32), ("value", c_int64)]


@cpp.pointers(bias="const Bias*")
class Sampling(Structure):
    """Sampling parameters as integers; the properties of program/sample.py's Sampling have their units."""

    _fields_ = [
        ("greedy", c_int32),
        ("top_k", c_int32),
        ("rate", c_uint64),
        ("top_p", c_uint64),
        ("min_weight", c_uint64),
        ("seed", c_uint64),
        ("repeat_up", c_int64),
        ("repeat_down", c_int64),
        ("presence", c_int64),
        ("frequency", c_int64),
        ("bias", c_void_p),
        ("bias_count", c_int64),
    ]


@cpp.pointers(tokens="const int32_t*", stop_tokens="const int32_t*", all_logits="float*")
class Request(Structure):
    _fields_ = [
        ("tokens", c_void_p),  # the whole sequence before the answer
        ("token_count", c_int64),
        ("cached", c_int64),  # its first tokens, whose keys and values are in the KV cache
        ("max_tokens", c_int64),
        ("stop_tokens", c_void_p),
        ("stop_count", c_int64),
        ("logprobs", c_int32),  # likeliest tokens to report, or NO_LOGPROBS
        ("unused", c_int32),
        ("all_logits", c_void_p),  # not null: the kernel stores the logits after every token here and samples nothing
        ("sampling", Sampling),
    ]


class Entry(Structure):
    """A generated token as the kernel writes it."""

    token: int
    top_count: int
    time_ns: int
    distance: int
    total: int
    top_distances: Sequence[int]
    top_tokens: Sequence[int]
    _fields_ = [
        ("token", c_int32),
        ("top_count", c_int32),  # entries of the two arrays
        ("time_ns", c_int64),
        ("distance", c_int64),  # highest fixed-point logit minus this token's
        ("total", c_uint64),  # sum of all weights
        ("top_distances", c_int64 * sample.MAX_LOGPROBS),
        ("top_tokens", c_int32 * sample.MAX_LOGPROBS),
    ]


def definitions() -> list[str]:
    """The C++ definitions of all of these."""
    return [
        f"constexpr int kMaxLogprobs = {sample.MAX_LOGPROBS};",
        cpp.enum(Status),
        *(line for kind in (Segment, Bias, Sampling, Request, Entry) for line in cpp.struct(kind)),
    ]


def segment_table(plan: Plan) -> ctypes.Array[Segment]:
    """The segments of all tapes: [worker][projection]."""
    rows = [Segment(s.first_tile, s.tiles, s.offset) for segments in plan.segments for s in segments]
    return (Segment * len(rows))(*rows)


def bias_table(sampling: sample.Sampling) -> ctypes.Array[Bias]:
    entries = [Bias(token, 0, value) for token, value in sampling.bias]
    return (Bias * len(entries))(*entries)


def sampling_struct(sampling: sample.Sampling, bias: int) -> Sampling:
    """``bias``: the address at which the kernel finds ``bias_table``."""
    return Sampling(
        greedy=sampling.greedy,
        top_k=sampling.top_k,
        rate=sampling.rate,
        top_p=sampling.top_share,
        min_weight=sampling.min_weight,
        seed=sampling.seed,
        repeat_up=sampling.repeat_up,
        repeat_down=sampling.repeat_down,
        presence=sampling.presence,
        frequency=sampling.frequency,
        bias=bias,
        bias_count=len(sampling.logit_bias),
    )


def token_of(entry: Entry, logprobs: bool) -> Token:
    """The token for the engine, with logprobs where the request asked for them."""
    if not logprobs:
        return Token(entry.token, entry.time_ns)
    choice = sample.Choice(entry.token, entry.distance, entry.total)
    count = min(entry.top_count, sample.MAX_LOGPROBS)
    top = tuple((entry.top_tokens[i], choice.logprob(entry.top_distances[i])) for i in range(count))
    return Token(entry.token, entry.time_ns, choice.logprob(entry.distance), top)
