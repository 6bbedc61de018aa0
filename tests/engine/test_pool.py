"""Several models on one machine: who is loaded, who must go, and who waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from engines import answer_of, ask, run, tokens_read, until
from monolane import ResourceError
from monolane.engine import pool as pool_module
from monolane.engine.pool import EnginePool
from monolane.engine.queue import WaitingQueue
from monolane.engine.result import Delta
from monolane.errors import NotEnoughMemoryError, NotReadyError
from synthetic_engine import synthetic_engine


@dataclass
class Memory:
    """That of a machine, as the engines below take it."""

    room: int
    held: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.room - sum(self.held.values())


class FakeEngine:
    """Loads in no time, if there is memory for it, and remembers what was done to it."""

    def __init__(self, name: str, size: int, memory: Memory) -> None:
        self.name, self.size, self.memory = name, size, memory
        self.status, self.done = "unloaded", ""
        self.target: Any = SimpleNamespace(memory_bytes=size)
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def state(self) -> Any:
        return SimpleNamespace(status=self.status)

    async def start(self) -> None:
        self.status = "loading"
        self.done += "+"
        await self.gate.wait()
        if self.size > self.memory.free:
            self.status = "failed"
            raise NotEnoughMemoryError("It needs more.", "Less.", self.size, self.memory.free)
        self.memory.held[self.name] = self.size
        self.status = "ready"

    async def unload(self) -> None:
        self.status, self.done = "unloaded", self.done + "-"
        del self.memory.held[self.name]

    async def close(self, drain_s: float) -> None:
        self.status = "closed"

    def not_ready(self) -> NotReadyError:
        return NotReadyError(f"{self.name} is {self.status}.")


def fakes(room: int, *, keep_alive_s: float = -1, wait_s: float = 10.0, **sizes: int) -> tuple[EnginePool, Any]:
    memory = Memory(room)
    engines: Any = {name: FakeEngine(name, size, memory) for name, size in sizes.items()}
    return EnginePool(engines, keep_alive_s=keep_alive_s, wait_s=wait_s), SimpleNamespace(**engines)


async def used(pool: EnginePool, *names: str) -> None:
    for name in names:
        async with pool.lease(name):
            pass


def test_models_are_loaded_when_they_are_asked_for() -> None:
    async def test() -> None:
        pool, engines = fakes(10, a=3, b=3)
        await pool.start()
        assert (engines.a.status, engines.b.status) == ("ready", "unloaded")
        await used(pool, "b", "a", "b")
        assert (engines.a.done, engines.b.done) == ("+", "+")

    run(test)


def test_the_one_used_least_recently_makes_room() -> None:
    async def test() -> None:
        pool, engines = fakes(10, a=4, b=4, c=4)
        await used(pool, "a", "b", "a", "c")
        assert [engine.status for engine in (engines.a, engines.b, engines.c)] == ["ready", "unloaded", "ready"]

    run(test)


def test_one_that_is_in_use_stays_until_its_request_is_over() -> None:
    async def test() -> None:
        pool, engines = fakes(5, a=4, b=4)
        async with pool.lease("a"):
            waiting = asyncio.create_task(used(pool, "b"))
            await until(lambda: pool.seats["a"].must_go)
            late = asyncio.create_task(used(pool, "a"))  # must not hold b up: it comes after
            await asyncio.sleep(0.02)
            assert (engines.a.status, waiting.done(), late.done()) == ("ready", False, False)
        await waiting
        await late
        assert (engines.a.done, engines.b.done) == ("+-++", "++-")  # the first try of each tells how much it needs

    run(test)


def test_one_that_can_never_fit_is_refused_with_numbers_and_costs_nobody_their_place() -> None:
    async def test() -> None:
        pool, engines = fakes(10_000_000, a=4_000_000, huge=20_000_000)
        await used(pool, "a")
        with pytest.raises(ResourceError, match=r"huge needs 20\.0 MB.*10\.0 MB"):
            await used(pool, "huge")
        assert engines.a.done == "+"
        with pytest.raises(ResourceError, match=r"20\.0 MB"):  # remembered: not tried again at once
            await used(pool, "huge")
        assert engines.huge.done == "+"

    run(test)


def test_one_that_has_failed_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        pool, engines = fakes(3, a=4)
        with pytest.raises(ResourceError):
            await used(pool, "a")
        engines.a.memory.room = 5
        monkeypatch.setattr(pool_module, "REMEMBERED_S", 0.0)
        await used(pool, "a")

    run(test)


def test_unused_models_are_unloaded_after_their_keep_alive() -> None:
    async def test() -> None:
        pool, engines = fakes(10, a=1, b=1, keep_alive_s=0)
        async with pool.lease("a"):
            await asyncio.sleep(0.02)
            assert engines.a.status == "ready"
        await until(lambda: engines.a.status == "unloaded")
        async with pool.lease("b", keep_alive_s=-1):  # as a request of Ollama's asks
            pass
        await used(pool, "b")
        await asyncio.sleep(0.02)
        assert engines.b.done == "+"

    run(test)


def test_one_that_was_used_again_meanwhile_stays() -> None:
    """Its time was over while another one was being loaded, and then it was used."""

    async def test() -> None:
        pool, engines = fakes(10, a=1, b=1, keep_alive_s=60)
        engines.b.gate.clear()
        loading = asyncio.create_task(used(pool, "b"))
        await until(lambda: engines.b.status == "loading")
        seat = pool.seats["a"]
        engines.a.status, seat.used_s = "ready", time.monotonic() - 61
        pool._expired(seat)  # as its timer does
        await used(pool, "a")
        engines.b.gate.set()
        await loading
        await asyncio.sleep(0.02)
        assert engines.a.status == "ready"

    run(test)


def test_who_waits_too_long_is_told_and_the_loading_goes_on() -> None:
    async def test() -> None:
        pool, engines = fakes(10, a=1, wait_s=0.02)
        engines.a.gate.clear()
        with pytest.raises(NotReadyError, match="loading"):
            await used(pool, "a")
        engines.a.gate.set()
        await until(lambda: engines.a.status == "ready")
        await used(pool, "a")
        assert engines.a.done == "+"

    run(test)


def test_a_pool_that_is_closed_refuses_who_waits() -> None:
    async def test() -> None:
        pool, _ = fakes(5, a=4, b=4)
        async with pool.lease("a"):
            waiting = asyncio.create_task(used(pool, "b"))
            await asyncio.sleep(0.02)
            await pool.close(0)
            with pytest.raises(NotReadyError):
                await waiting

    run(test)


@asynccontextmanager
async def real_pool(**answers: str) -> AsyncIterator[EnginePool]:
    queue = WaitingQueue(8)
    made = {
        name: synthetic_engine(answer=answer, queue=queue, context=512, tokens_per_second=200)
        for name, answer in answers.items()
    }
    pool = EnginePool(made)
    try:
        yield pool
    finally:
        await pool.close(0)


def test_engines_take_turns_and_know_their_place_in_the_common_queue() -> None:
    async def test() -> None:
        async with (
            real_pool(a="a" * 20 + "<eos>", b="bbb<eos>") as pool,
            pool.lease("a") as first,
            pool.lease("b") as second,
        ):
            running = ask(first)
            await tokens_read(running, 1)
            behind, last = ask(second), ask(first)
            assert (behind.position, last.position) == (1, 2)
            assert (second.queue_depth, first.queue_depth) == (1, 1)
            order = []

            async def read(name: str, answer: Any) -> None:
                async for event in answer:
                    if isinstance(event, Delta):
                        order.append(name)

            await asyncio.gather(read("1", running), read("2", behind), read("3", last))
            assert "".join(order) == "".join(sorted(order))
            assert behind.result.text == "bbb"

    run(test)


def test_an_engine_that_was_unloaded_answers_again_and_goes_on_counting() -> None:
    async def test() -> None:
        async with real_pool(a="Hello.<eos>") as pool:
            engine = pool.seats["a"].engine
            async with pool.lease("a"):
                await answer_of(engine)
            await engine.unload()
            assert (engine.state.status, engine.state.core_pid) == ("unloaded", None)
            with pytest.raises(NotReadyError):
                ask(engine)
            async with pool.lease("a"):
                assert (await answer_of(engine)).text == "Hello."
            assert engine.counters.finished["stop"] == 2

    run(test)
