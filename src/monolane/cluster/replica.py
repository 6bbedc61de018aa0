"""A replica: the server's routes over an engine of its own, as a Ray Serve deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray import serve
from starlette.types import Message

from monolane.cluster.calls import ACCEPTED, NOTES, Call
from monolane.cluster.processors import take_processors
from monolane.serve import request_log
from monolane.serve.app import create_routes
from monolane.serve.service import Service


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
        await self._service.engine.start()

    async def answer(self, call: Call) -> AsyncIterator[Message]:
        """The response to a request, message by message. When the front cancels the call, the client has left."""
        yield {"type": ACCEPTED, "replica": self._name}
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
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

        async def run() -> None:
            try:
                await self._app(scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            yield {"type": NOTES, "notes": notes}
        finally:
            left.set()
            await asyncio.wait([running])
        running.result()

    async def state(self) -> dict[str, str | int | None]:
        """As ``GET /health`` tells it."""
        state = self._service.engine.state
        fields = ("status", "label", "done_bytes", "total_bytes", "problem")
        return {field: getattr(state, field) for field in fields}

    async def metrics(self) -> tuple[str, bytes]:
        return self._name, self._service.metrics.text()

    async def check_health(self) -> None:
        """Ray replaces a replica that says three times in a row that it is not well."""
        state = self._service.engine.state
        if state.status != "ready":
            raise RuntimeError(f"The engine is {state.status}: {state.problem}.")
