"""The interface to a compiled CPU kernel: the structs that it takes, and its functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ResourceError, TargetError
from monolane.program.tape import Tape
from monolane.target import cpp, structs
from monolane.target.base import Request


@cpp.pointers(
    segments="const Segment*",
    tapes="const uint8_t* const*",
    constants="const float* const*",
    table="const uint8_t*",
    processors="const int32_t*",
    shared="void*",
)
class Setup(Structure):
    """What the host prepares once for a loaded model."""

    _fields_ = [
        ("workers", c_int32),  # of a lane
        ("threads", c_int32),  # one per worker of this process; or fewer, where every lane has one worker
        ("first_lane", c_int32),  # of this process
        ("lanes", c_int32),  # of this process
        ("context", c_int32),
        ("unused", c_int32),
        ("segments", c_void_p),  # [worker][projection], the same for all lanes
        ("tapes", c_void_p),  # [lane of this process][worker]
        ("constants", c_void_p),  # [lane of this process]: norm weights and biases
        ("table", c_void_p),  # the embedding where it is not tied to the head, else null
        ("processors", c_void_p),  # one per thread, or null: threads are not pinned
        ("shared", c_void_p),  # memory that all lanes share, zero at first; null: all lanes are in this process
        ("deadline_s", c_double),  # a worker without a beat for this long is stuck, see csrc/pulse.hpp
    ]


@cpp.pointers(keys="void*", values="void*")
class Cache(Structure):
    """The addresses of one KV cache; that of a lane follows that of the lane before."""

    _fields_ = [("keys", c_void_p), ("values", c_void_p)]


@cpp.pointers(stamps="int64_t*")
class Trace(Structure):
    """Where the kernel stores time stamps, for `monolane trace`."""

    _fields_ = [
        ("stamps", c_void_p),  # ns, [pass][worker][stage][3]; null: nothing is traced
        ("first", c_int64),  # the first decode pass that is traced; the input of pass 0 is the answer's first token
        ("passes", c_int64),
    ]


def definitions() -> list[str]:
    """The C++ definitions of all of these."""
    return [line for kind in (Setup, Cache, Trace) for line in cpp.struct(kind)]


@dataclass(frozen=True)
class Arguments:
    """A struct for the kernel, and the memory that its pointers point to, which must live as long."""

    struct: Structure
    memory: tuple[object, ...]


@dataclass(frozen=True)
class LaneMemory:
    """What the kernel reads of one lane: the tapes of its workers, and its constants."""

    tapes: Sequence[NDArray[np.uint8]]
    constants: NDArray[np.float32]

    @classmethod
    def of(cls, tape: Tape) -> LaneMemory:
        return cls(tape.workers, tape.constants.values)


@dataclass(frozen=True)
class Place:
    """Where lanes run: on how many threads of which processors, and beside which others."""

    threads: int
    processors: Sequence[int] | None = None  # None: threads are not pinned
    first_lane: int = 0
    shared: int | None = None  # the address of the memory that lanes share with those of other processes


def make_setup(
    lanes: Sequence[LaneMemory],
    segments: ctypes.Array[structs.Segment],
    table: NDArray[np.uint8] | None,
    context: int,
    place: Place,
    deadline_s: float,
) -> Arguments:
    """``segments``: [worker][projection]."""
    parts = [part.ctypes.data for lane in lanes for part in lane.tapes]
    addresses = (c_void_p * len(parts))(*parts)
    constants = (c_void_p * len(lanes))(*(lane.constants.ctypes.data for lane in lanes))
    pinned = (c_int32 * place.threads)(*place.processors) if place.processors else None
    setup = Setup(
        workers=len(lanes[0].tapes),
        threads=place.threads,
        first_lane=place.first_lane,
        lanes=len(lanes),
        context=context,
        segments=ctypes.addressof(segments),
        tapes=ctypes.addressof(addresses),
        constants=ctypes.addressof(constants),
        table=table.ctypes.data if table is not None else None,
        processors=ctypes.addressof(pinned) if pinned else None,
        shared=place.shared,
        deadline_s=deadline_s,
    )
    return Arguments(setup, (lanes, segments, table, addresses, constants, pinned))


def make_request(request: Request, logits: NDArray[np.float32] | None = None) -> Arguments:
    """``logits``: where the kernel stores the logits after every token; it samples nothing then."""
    tokens = np.array(request.tokens, np.int32)
    stops = np.array(sorted(request.stop_tokens), np.int32)
    bias = structs.bias_table(request.sampling)
    struct = structs.Request(
        tokens=tokens.ctypes.data,
        token_count=len(tokens),
        cached=request.cached,
        max_tokens=request.max_tokens,
        stop_tokens=stops.ctypes.data,
        stop_count=len(stops),
        logprobs=structs.NO_LOGPROBS if request.logprobs is None else request.logprobs,
        all_logits=logits.ctypes.data if logits is not None else None,
        sampling=structs.sampling_struct(request.sampling, ctypes.addressof(bias)),
    )
    return Arguments(struct, (tokens, stops, bias, logits))


def make_trace(stamps: NDArray[np.int64], first: int) -> Arguments:
    """``stamps``: [pass][worker][stage][3], filled from decode pass ``first`` on."""
    return Arguments(Trace(stamps.ctypes.data, first, len(stamps)), (stamps,))


NO_TRACE = Arguments(Trace(), ())


class Library:
    """A loaded kernel. Calls release the GIL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._calls: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise TargetError(
                f"The compiled kernel {path} cannot be loaded: {error}", "Delete the file; it is compiled again."
            ) from error
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "open": (c_void_p, [POINTER(Setup)]),
            "close": (c_int32, [c_void_p]),
            "shared_bytes": (c_int64, [c_int32]),
            "start": (c_int64, [c_void_p, POINTER(structs.Request), POINTER(Cache), POINTER(Trace)]),
            "abort": (None, [c_void_p, c_int64]),
            "wait": (c_int64, [c_void_p, c_int64, c_int32]),
            "status": (c_int32, [c_void_p]),
            "entries": (c_void_p, [c_void_p]),
            "start_ns": (c_int64, [c_void_p]),
            "steps": (c_uint64, [c_void_p]),
            "stall": (None, [c_void_p, c_void_p]),
        }
        for name, (result, arguments) in signatures.items():
            call = getattr(self._calls, f"monolane_{name}")
            call.restype, call.argtypes = result, arguments

    def open(self, setup: Arguments) -> int:
        engine = self._calls.monolane_open(ctypes.byref(setup.struct))
        if not engine:
            raise ResourceError("There is not enough memory for the kernel's buffers.", "Use a smaller context.")
        return int(engine)

    def shared_bytes(self, workers: int) -> int:
        """Bytes of the memory that lanes with so many workers each share."""
        return int(self._calls.monolane_shared_bytes(workers))

    def close(self, engine: int) -> bool:
        return bool(self._calls.monolane_close(engine))

    def start(self, engine: int, request: Arguments, cache: Cache, trace: Arguments) -> int:
        """Start a request. Returns its number, or 0 where it cannot start."""
        given = (ctypes.byref(request.struct), ctypes.byref(cache), ctypes.byref(trace.struct))
        return int(self._calls.monolane_start(engine, *given))

    def abort(self, engine: int, number: int) -> None:
        self._calls.monolane_abort(engine, number)

    def wait(self, engine: int, seen: int, timeout_ms: int) -> int:
        return int(self._calls.monolane_wait(engine, seen, timeout_ms))

    def status(self, engine: int) -> int:
        return int(self._calls.monolane_status(engine))

    def entries(self, engine: int, start: int, stop: int) -> Sequence[structs.Entry]:
        base = self._calls.monolane_entries(engine) + start * ctypes.sizeof(structs.Entry)
        return (structs.Entry * (stop - start)).from_address(base)  # type: ignore[return-value]

    def start_ns(self, engine: int) -> int:
        return int(self._calls.monolane_start_ns(engine))

    def steps(self, engine: int) -> int:
        return int(self._calls.monolane_steps(engine))

    def stall(self, engine: int) -> tuple[int, int, int]:
        out = (c_int32 * 3)()
        self._calls.monolane_stall(engine, ctypes.addressof(out))
        return out[0], out[1], out[2]
