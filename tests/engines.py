"""Synthetic engines for tests that send requests and wait for answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fake_model import encode
from monolane import SamplingParams
from monolane.engine.answer import Answer, Event
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.result import Completion, Delta
from synthetic_engine import synthetic_engine

ENOUGH_S = 30.0  # a test that takes longer hangs


def run(
    test: Callable[[], Coroutine[Any, Any, None]], runner: asyncio.Runner | None = None, seconds: float = ENOUGH_S
) -> None:
    """Run a test that may not hang, in an event loop of its own or in one that goes on."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await test()

    runner.run(limited()) if runner else asyncio.run(limited())


@asynccontextmanager
async def engine(**behaviour: Any) -> AsyncIterator[AsyncEngine]:
    """One that is ready, and closed at the end."""
    made = synthetic_engine(**behaviour)
    await made.start()
    try:
        yield made
    finally:
        await made.close(drain_s=0)


def ask(engine: AsyncEngine, prompt: str = "Hi", **params: Any) -> Answer:
    return engine.submit(encode(prompt), SamplingParams(**params))


async def answer_of(engine: AsyncEngine, prompt: str = "Hi", **params: Any) -> Completion:
    return await ask(engine, prompt, **params).whole()


async def tokens_read(answer: Answer, count: int) -> list[Event]:
    """Read until at least so many tokens have come."""
    events: list[Event] = []
    while sum(len(event.token_ids) for event in events if isinstance(event, Delta)) < count:
        events.append(await anext(answer))
    return events


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
