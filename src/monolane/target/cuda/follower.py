"""A lane of the CUDA target in a process of its own, on a GPU of its own or on a share of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from monolane.errors import TargetError
from monolane.lanes.channel import close_files
from monolane.lanes.memory import SharedAllocator, SharedMemory
from monolane.program.plan import Plan
from monolane.program.tape import Tape
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda import peer_memory
from monolane.target.cuda.driver import Context, Device, find_devices
from monolane.target.cuda.launch_model import LaunchModel
from monolane.target.cuda.launcher import DEADLINE_S, Launcher
from monolane.target.cuda.peer_memory import PeerMemory
from monolane.target.cuda.stamps import Stamps
from monolane.target.lane_processes import Answer, LaneProcesses, LaneSetup

POLL_S = 1e-3  # between two looks at a kernel whose tokens nobody waits for
LEAVE_S = 2.0  # for a kernel to end when the first process is gone: several deadlines


def lane_setups(
    plan: Plan,
    tapes: Sequence[Tape],
    cubin: bytes,
    memory: SharedAllocator,
    devices: Sequence[Device],
    context: int,
    caches: int,
    deadline_s: float = DEADLINE_S,
) -> list[LaneSetup]:
    """For the processes of all lanes but the first. The tapes are in ``memory``."""
    table = tapes[0].table
    kernel = memory.copy_of(np.frombuffer(cubin, np.uint8))
    copies: dict[str, SharedMemory] = {}  # of arrays that are the same for all lanes
    setups = []
    for lane in range(1, len(tapes)):
        model = LaunchModel.of(plan, [tapes[lane]], table, context)
        pieces = {"cubin": kernel}
        for name, array in model.arrays.items():
            if name == "constants":
                pieces[f"array {name}"] = memory.copy_of(array)
            elif name not in copies:
                copies[name] = memory.memory_of(array) if array is table else memory.copy_of(array)
            if name in copies:
                pieces[f"array {name}"] = copies[name]
        pieces |= {f"tape {worker}": memory.memory_of(part) for worker, part in enumerate(model.tapes)}
        values = {
            "device": devices[lane].number, "caches": caches, "deadline_s": deadline_s,
            "buffers": dict(model.sizes), "cache_rows": model.cache_rows, "vocab": model.vocab, "context": context,
            "head_rows": plan.program.head.matrix.rows,
        }  # fmt: skip
        setups.append(LaneSetup("cuda", lane, values, pieces))
    return setups


def meet(context: Context, own: PeerMemory, others: LaneProcesses) -> list[int]:
    """Give the memory of all lanes to all of them; returns where it is in this process, that of lane 0."""
    answers = others.ready()
    lanes = [_told(own), *(message for message, _ in answers)]
    files = [*_files(own), *(file for _, theirs in answers for file in theirs)]
    try:
        others.ask({"lanes": lanes}, "met", files)
        return _mapped(context, 0, own.address, lanes, files)
    finally:
        close_files(files)


def _told(memory: PeerMemory) -> dict[str, Any]:
    """What other processes must know of memory, beside its descriptor."""
    return {"bytes": memory.size, "handle": memory.handle.hex()}


def _files(memory: PeerMemory) -> list[int]:
    return [] if memory.file is None else [memory.file]


def _mapped(
    context: Context, own_lane: int, own: int, lanes: Sequence[dict[str, Any]], files: Sequence[int]
) -> list[int]:
    """The address of the memory of every lane. Those without a handle have a descriptor, in the order of the lanes."""
    left, found = iter(files), []
    for lane, told in enumerate(lanes):
        file = None if told["handle"] else next(left)
        if lane == own_lane:
            found.append(own)
        else:
            found.append(peer_memory.map_shared(context, told["bytes"], file, bytes.fromhex(told["handle"])))
    return found


class CudaFollower:
    """The launches of one lane, as ``Follower`` of lane_main.py."""

    def __init__(self, values: dict[str, Any], pieces: Mapping[str, SharedMemory]) -> None:
        self._lane, self._head_rows = values["lane"], values["head_rows"]
        arrays = {name.removeprefix("array "): piece.array for name, piece in pieces.items() if name[:6] == "array "}
        model = LaunchModel(
            tapes=[piece.array for name, piece in pieces.items() if name.startswith("tape ")],
            arrays=arrays,
            head_places=None,
            sizes=values["buffers"],
            cache_rows=values["cache_rows"],
            vocab=values["vocab"],
            context=values["context"],
        )
        context = Context(find_devices()[values["device"]])
        kernel = context.load(pieces["cubin"].array.tobytes(), context.device.shared_limit)
        self._memory = peer_memory.share(context, model.handoff_bytes)
        self._launcher = Launcher(
            context, kernel, model, values["caches"], values["deadline_s"], self._memory.address, self._lane
        )
        self._logits = (0, 0)  # address and number of tokens
        self._stamps: tuple[Stamps, SharedMemory] | None = None  # of the next request, and where its waits go

    def ready(self) -> Answer:
        return _told(self._memory), _files(self._memory)

    def meet(self, answer: Answer) -> None:
        message, files = answer
        context = self._launcher.context
        self._launcher.connect(_mapped(context, self._lane, self._memory.address, message["lanes"], files))
        close_files([*files, *_files(self._memory)])

    def start(self, request: Request, all_logits: bool, number: int) -> None:
        context = self._launcher.context
        context.enter()
        if all_logits:
            self._logits = context.allocate(4 * len(request.tokens) * self._launcher.model.vocab), len(request.tokens)
        kernel = self._stamps[0].kernel if self._stamps else None
        self._launcher.start(request, number, self._logits[0] if all_logits else None, kernel)

    def finish(self, stuck: Callable[[dict[str, int]], None]) -> None:
        reported = False
        while True:
            running = self._launcher.running()  # read first: once it is False, the outcome is final
            if not reported and self._launcher.outcome.status == structs.Status.STUCK:
                stuck(self._launcher.outcome.report())
                reported = True
            if not running:
                break
            time.sleep(POLL_S)
        if self._stamps:
            stamps, waits = self._stamps
            self._stamps = None
            stamps.read()
            stamps.close()
            waits.array.view(np.int64)[:] = stamps.waits.reshape(-1)

    def stamp(self, kernel: bytes, stages: int, first: int, passes: int, waits: SharedMemory) -> None:
        self._stamps = Stamps(self._launcher, kernel, stages, first, passes), waits

    def give(self, logits: SharedMemory) -> None:
        (address, tokens), vocab = self._logits, self._launcher.model.vocab
        own = np.empty((tokens, vocab), np.float32)
        self._launcher.context.download(address, own)
        self._launcher.context.free(address)
        columns = slice(self._lane * self._head_rows, (self._lane + 1) * self._head_rows)
        logits.array.view(np.float32).reshape(own.shape)[:, columns] = own[:, columns]

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self._launcher.copy(source, destination, tokens)

    def leave(self) -> None:
        """A process that ends while its kernel runs may disturb others under MPS. So the kernel ends first."""
        self._launcher.abort()
        end_s = time.monotonic() + LEAVE_S
        with suppress(TargetError):
            while self._launcher.running() and time.monotonic() < end_s:
                time.sleep(POLL_S)
