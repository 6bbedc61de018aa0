"""Launches the kernel on one GPU: the memory of the lanes that it runs there, and their KV caches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from monolane.errors import TargetError
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda.constants import PAGE_TOKENS, THREADS
from monolane.target.cuda.driver import Context, Kernel
from monolane.target.cuda.launch import Launch, Outcome, entry_bytes, set_request
from monolane.target.cuda.launch_model import LaunchModel
from monolane.target.cuda.request_memory import RequestMemory

DEADLINE_S = 0.5  # after which the kernel reports a stuck worker
# Where the memory of hand-offs may begin (see CudaTarget.settle). The distance is no power of two, so that the places
# differ in more than one bit of their addresses.
PLACES, PLACE_BYTES = 8, 36 << 10


class Launcher:
    """One launch at a time. ``handoffs``: where the memory of hand-offs is, if lanes in other processes use it, too;
    such a launch has one lane, number ``lane``."""

    def __init__(
        self,
        context: Context,
        kernel: Kernel,
        model: LaunchModel,
        caches: int,
        deadline_s: float = DEADLINE_S,
        handoffs: int | None = None,
        lane: int = 0,
    ) -> None:
        self.context = context
        self.kernel = kernel
        self._is_apart = handoffs is not None
        if handoffs is None:
            handoffs = context.allocate(model.handoff_bytes + (PLACES - 1) * PLACE_BYTES)
        self._handoffs = self._first_place = handoffs
        self.launch = model.place(context, handoffs, deadline_s)
        self.workers = model.workers
        self.model = model.without_arrays()  # the device has them
        self.launch.lane = lane
        self._request = RequestMemory(context)
        sizes = model.cache_bytes
        more = [(context.allocate(sizes[0]), context.allocate(sizes[1])) for _ in range(caches - 1)]
        self._caches = [(self.launch.keys, self.launch.values), *more]
        self._entries = context.host_memory(entry_bytes(model.context))
        self._outcome = context.host_memory(ctypes.sizeof(Outcome))
        self._abort = context.host_memory(4)
        self.launch.entries, self.launch.outcome, self.launch.abort = self._entries, self._outcome, self._abort

    @property
    def caches(self) -> int:
        return len(self._caches)

    @property
    def outcome(self) -> Outcome:
        """The struct that the kernel updates while it runs."""
        return Outcome.from_address(self._outcome)

    def place_handoffs(self, place: int) -> None:
        """Move the memory of hand-offs, while no request runs. ``place``: 0 to PLACES - 1."""
        self._handoffs = self._first_place + place * PLACE_BYTES
        self.model.place_handoffs(self.launch, self._handoffs)

    def connect(self, peers: Sequence[int]) -> None:
        """Where the memory of hand-offs of all lanes is; that of this launch is its own."""
        for lane, address in enumerate(peers):
            self.launch.peers[lane] = address - self._handoffs

    def start(self, request: Request, number: int, all_logits: int | None, kernel: Kernel | None = None) -> None:
        """Launch the kernel for a request. ``number``: one that no request has had before."""
        self.context.enter()
        if self.context.running():
            raise TargetError("A request is still running.", "Wait for it, or abort it.")
        self._request.begin()
        set_request(self.launch, request, self.model.vocab, self._request, all_logits)
        self.launch.number = number
        self.context.clear(self._handoffs, self.model.cleared_bytes)
        ctypes.memset(self._outcome, 0, ctypes.sizeof(Outcome))
        ctypes.c_uint32.from_address(self._abort).value = 0
        argument = Launch.from_buffer_copy(self.launch)
        argument.keys, argument.values = self._caches[request.cache]
        shared_bytes = self.context.device.shared_limit
        # The thread blocks of several launches wait for each other: that these are resident at once, no launch alone
        # can promise. They meet before anything else, and the deadline ends those that do not.
        self.context.launch(
            kernel or self.kernel, self.workers, THREADS, shared_bytes, argument, cooperative=not self._is_apart
        )

    def entries(self, start: int, stop: int) -> Sequence[structs.Entry]:
        base = self._entries + start * ctypes.sizeof(structs.Entry)
        return (structs.Entry * (stop - start)).from_address(base)  # type: ignore[return-value]

    def abort(self) -> None:
        ctypes.c_uint32.from_address(self._abort).value = 1

    def running(self) -> bool:
        self.context.enter()
        return self.context.running()

    def copy(self, source: int, destination: int, tokens: int) -> None:
        """As ``Target.copy``. Whole pages are copied; positions of the last page beyond ``tokens`` are never read."""
        self.context.enter()
        rows, pages = self.model.cache_rows, -(-self.model.context // PAGE_TOKENS)
        for which, size in enumerate(self.model.cache_bytes):
            pitch = size // rows
            width = pitch // pages * -(-tokens // PAGE_TOKENS)
            self.context.copy_rows(self._caches[source][which], self._caches[destination][which], pitch, width, rows)
