"""A replica: the server's routes over an engine of its own, as a Ray Serve deployment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray import serve
from starlette.types import Message

from monolane.cluster.calls import ACCEPTED, NOTES, Call
from monolane.cluster.processors import take_processors
from monolane.serve import request_log
from monolane.serve.app import create_routes
from monolane.serve.service import Service

LOGGER = logging.getLogger("monolane.cluster")
UNWELL_S = 60.0  # without a ready engine; then the replica is replaced


class Replica:
    """``make`` makes the service. ``processors``: how many it may use; None where it computes on a GPU. The front has
    checked keys and limits, and writes the log of requests."""

    async def __init__(self, make: Callable[[], Service], processors: int | None) -> None:  # type: ignore[misc]
        request_log.set_up("warning")
        if processors is not None:
            take_processors(processors)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._service = make()
        self._app = create_routes(self._service)
        await self._service.start()
        self._ready = time.monotonic()  # when it was last seen to be

    async def answer(self, call: Call) -> AsyncIterator[list[Message]]:
        """The response to a request: all messages that are ready at a time, and what was noted so far. Clients leave
        after the last event of a stream, so its end must come along. A call is cancelled when its client has left."""
        yield [{"type": ACCEPTED, "replica": self._name}]
        ready: list[Message] = []
        news = asyncio.Event()
        body: Message | None = {"type": "http.request", "body": call.body, "more_body": False}
        left = asyncio.Event()

        async def receive() -> Message:
            nonlocal body
            if (first := body) is not None:
                body = None
                return first
            await left.wait()
            return {"type": "http.disconnect"}

        notes: dict[str, Any] = {}
        scope = {**call.scope, request_log.NOTES: notes}

        async def send(message: Message) -> None:
            ready.append(message)
            news.set()

        running = asyncio.create_task(self._app(scope, receive, send))
        running.add_done_callback(lambda _: news.set())
        try:
            over = False
            while not over:
                await news.wait()
                news.clear()
                over = running.done()
                piece, ready[:] = [*ready, {"type": NOTES, "notes": dict(notes)}], []
                yield piece
        finally:
            left.set()
            await asyncio.wait([running])
        if (error := running.exception()) is not None:  # the client has got a 500
            LOGGER.error("A request has failed.", exc_info=error)

    async def state(self) -> dict[str, str | int | None]:
        """As ``GET /health`` tells it."""
        state = self._service.first.engine.state
        fields = ("status", "label", "done_bytes", "total_bytes", "problem")
        return {field: getattr(state, field) for field in fields}

    async def metrics(self) -> tuple[str, bytes]:
        return self._name, self._service.metrics.text()

    async def check_health(self) -> None:
        """Ray asks every few seconds, and replaces a replica that raises three times in a row. An engine that died is
        started again by its supervisor: only one that does not come back needs another replica."""
        state = self._service.trouble
        if state is None:
            self._ready = time.monotonic()
        elif time.monotonic() - self._ready > UNWELL_S:
            raise RuntimeError(f"The engine is {state.status}: {state.problem}.")
