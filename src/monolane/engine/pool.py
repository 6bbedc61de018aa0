"""The engines of a server that has several models: loaded when they are asked for, unloaded when memory is needed.

A request holds a lease on its model's engine from its beginning to the last byte of its response; an engine is unloaded
only while nobody holds one. Engines are loaded and unloaded one after the other:

    lease(B)     B is loaded: it is given at once
                 B is not:    it is loaded, and the request waits, for ``wait_s`` seconds at most
    load B       B fits beside the others
                 B would fit without some of them: the one that was used least recently is unloaded, then it is tried
                 again; where all are in use, the first to be free. Who asks for one that must go waits until B is there
                 B would not fit even alone: the error says so with numbers, and nothing is unloaded for it
    keep-alive   so many seconds after the last lease on it, an engine is unloaded
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from monolane.cache import human_size
from monolane.engine.async_engine import AsyncEngine
from monolane.errors import NotEnoughMemoryError, NotReadyError

LOGGER = logging.getLogger("monolane.engine")
FOREVER = -1.0  # as a keep-alive: until memory is needed
WAIT_S = 120.0  # that a request waits for its model; then it gets a 503, and the loading goes on
SLACK_S = 0.01  # that a timer may be early
REMEMBERED_S = 30.0  # an error of loading: requests get it without another try


class Seat:
    """One model's engine in the pool."""

    def __init__(self, name: str, engine: AsyncEngine, keep_alive_s: float) -> None:
        self.name, self.engine = name, engine
        self.keep_alive_s = keep_alive_s
        self.leases = 0
        self.waiting = 0  # requests that wait for it to be loaded
        self.promised = 0  # of these, those that it was loaded for and that have not noticed yet
        self.used_s = 0.0  # when the latest lease ended, on time.monotonic()
        self.must_go = False  # another model needs its memory
        self.loading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.failed_s = -REMEMBERED_S
        self.error: Exception | None = None

    @property
    def is_loaded(self) -> bool:
        return self.engine.state.status in ("ready", "restarting")

    @property
    def is_used(self) -> bool:
        return self.leases > 0 or self.promised > 0

    @property
    def memory_bytes(self) -> int:
        """Held by it now."""
        return self.engine.target.memory_bytes if self.is_loaded and self.engine.target else 0

    @property
    def expires_s(self) -> float | None:
        """The seconds until it is unloaded, if nobody uses it; None: it stays."""
        if not self.is_loaded or self.keep_alive_s < 0:
            return None
        return max(0.0, self.keep_alive_s - (0.0 if self.leases else time.monotonic() - self.used_s))


class EnginePool:
    """Engines by the names of their models. The first is loaded by ``start``, the others when they are asked for.

    keep_alive_s  how long an engine that nobody uses stays; FOREVER: until its memory is needed
    wait_s        how long a request waits for its model. 0: not at all; for a server with one model, which is loaded
                  from its start on
    """

    def __init__(
        self, engines: Mapping[str, AsyncEngine], *, keep_alive_s: float = FOREVER, wait_s: float = WAIT_S
    ) -> None:
        self.seats = {name: Seat(name, engine, keep_alive_s) for name, engine in engines.items()}
        self._wait_s = wait_s
        self._changing = asyncio.Lock()  # held while an engine is loaded or unloaded
        self._freed = asyncio.Event()  # a lease has ended
        self._closed = False
        self._unloading: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the first model; raise what went wrong."""
        await self._loading_of(next(iter(self.seats.values())))

    async def close(self, drain_s: float = 3.0) -> None:
        """As AsyncEngine's: requests get so many seconds."""
        self._closed = True
        self._freed.set()
        await asyncio.gather(*(seat.engine.close(drain_s) for seat in self.seats.values()))
        for seat in self.seats.values():
            if seat.timer is not None:
                seat.timer.cancel()
        loading = [seat.loading for seat in self.seats.values() if seat.loading is not None]
        await asyncio.gather(*loading, *self._unloading, return_exceptions=True)

    @asynccontextmanager
    async def lease(self, name: str, keep_alive_s: float | None = None) -> AsyncIterator[AsyncEngine]:
        """The engine of a model, which stays loaded inside the block. NotReadyError where it is not loaded in time, and
        the error where it cannot be. ``keep_alive_s``: another keep-alive for this model, from now on."""
        seat = self.seats[name]
        await self._loaded(seat)
        seat.leases += 1
        if keep_alive_s is not None:
            seat.keep_alive_s = keep_alive_s
        try:
            yield seat.engine
        finally:
            seat.leases -= 1
            seat.used_s = time.monotonic()
            self._freed.set()
            self._set_timer(seat)

    # --- loading ---

    async def _loaded(self, seat: Seat) -> None:
        """Return when the engine can be used."""
        seat.waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                while not seat.is_loaded or (seat.must_go and not seat.promised):
                    await asyncio.shield(self._loading_of(seat))
        except TimeoutError:
            raise seat.engine.not_ready() from None
        finally:
            seat.waiting -= 1
            seat.promised = max(0, seat.promised - 1)
            self._freed.set()
            self._set_timer(seat)

    def _loading_of(self, seat: Seat) -> asyncio.Task[None]:
        """The task that loads a model. It goes on when those who wait for it have left."""
        if seat.loading is None or seat.loading.done():
            if seat.error is not None and time.monotonic() - seat.failed_s < REMEMBERED_S:
                raise seat.error
            seat.loading = asyncio.create_task(self._load(seat))
            seat.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may have no reader
        return seat.loading

    async def _load(self, seat: Seat) -> None:
        async with self._changing:
            if seat.is_loaded:
                return
            if self._closed:
                raise seat.engine.not_ready()
            began_s = time.monotonic()
            try:
                while True:
                    try:
                        await seat.engine.start()
                        break
                    except NotEnoughMemoryError as error:
                        await self._make_room(seat, error)
            except Exception as error:
                seat.failed_s, seat.error = time.monotonic(), error
                if len(self.seats) > 1 and not isinstance(error, NotReadyError):
                    LOGGER.warning("%s could not be loaded: %s", seat.name, error)
                raise
            finally:
                for other in self.seats.values():
                    other.must_go = False
            seat.error, seat.used_s, seat.promised = None, time.monotonic(), seat.waiting
            if len(self.seats) > 1:
                LOGGER.info("Loaded %s in %.1f s.", seat.name, seat.used_s - began_s)
            self._set_timer(seat)

    async def _make_room(self, seat: Seat, error: NotEnoughMemoryError) -> None:
        """Unload the engine that was used least recently; raise where all of them together hold too little."""
        others = [other for other in self.seats.values() if other.is_loaded]
        held = sum(other.memory_bytes for other in others)
        if not others or error.needed > error.available + held:
            raise error if not others else _too_large(seat.name, error, held)
        for other in others:
            other.must_go = True  # and so takes no new requests, which might never end
        while all(other.is_used for other in others):
            self._freed.clear()
            await self._freed.wait()
            if self._closed:
                raise seat.engine.not_ready()
        oldest = min((other for other in others if not other.is_used), key=lambda other: other.used_s)
        await self._unload(oldest, f"{seat.name} needs its memory")
        for other in others:
            other.must_go = False

    # --- unloading ---

    async def _unload(self, seat: Seat, why: str) -> None:
        await seat.engine.unload()
        LOGGER.info("Unloaded %s: %s.", seat.name, why)

    def _set_timer(self, seat: Seat) -> None:
        if seat.timer is not None:
            seat.timer.cancel()
        if seat.keep_alive_s >= 0 and not seat.leases and not seat.waiting and seat.is_loaded:
            seat.timer = asyncio.get_running_loop().call_later(seat.keep_alive_s, self._expired, seat)

    def _expired(self, seat: Seat) -> None:
        task = asyncio.create_task(self._unload_unused(seat))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload_unused(self, seat: Seat) -> None:
        async with self._changing:
            left_s = seat.expires_s  # it may have been used while another engine was loaded
            if left_s is not None and left_s < SLACK_S and not seat.leases and not seat.waiting and not self._closed:
                await self._unload(seat, f"unused for {seat.keep_alive_s:g} s")


def _too_large(name: str, error: NotEnoughMemoryError, held: int) -> NotEnoughMemoryError:
    room = error.available + held
    return NotEnoughMemoryError(
        f"{name} needs {human_size(error.needed)} of memory, and there would be {human_size(room)} if no other model "
        "were loaded.",
        error.hint,
        error.needed,
        room,
    )
