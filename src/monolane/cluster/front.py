"""The front: an ASGI application that passes every request on to a replica, and to another one where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from monolane.cluster import metrics
from monolane.cluster.calls import ACCEPTED, NOTES, Call, ReplicaLostError, carried
from monolane.cluster.relay import Relay
from monolane.cluster.routing import conversation_of
from monolane.errors import MonolaneError, NotReadyError
from monolane.serve.app import protect
from monolane.serve.failures import ClientLeftError, add_failure_handlers
from monolane.serve.metrics import TYPE
from monolane.serve.request_log import note

TRIES = 3  # replicas that get to see a request


class Replicas(Protocol):
    """What the front needs of the replicas."""

    def answer(self, call: Call) -> AsyncGenerator[Sequence[Message]]:
        """The response of a replica, piece by piece: ACCEPTED, the messages of ASGI, NOTES. ReplicaLostError where the
        replica dies in between, NotReadyError where there is none."""

    async def states(self) -> Sequence[dict[str, Any]]:
        """The state of each replica, as ``GET /health`` tells it; where there is none, why."""

    async def metrics(self) -> dict[str, bytes]:
        """The metrics of each replica."""


class Front:
    """Passes requests on. A response of which no token was sent yet is asked for again where its replica is lost, has
    failed (500) or cannot take it (503)."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False
        self.retried = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (body := await _body(receive)) is None:
            return
        if self._closing:
            raise NotReadyError("The server is being closed.", "Ask again when it is back.")
        relay = Relay(scope, send)
        answering = asyncio.create_task(self._answer(Call(carried(scope), body, conversation_of(body)), relay))
        leaving = asyncio.create_task(_left(receive))
        self._answering.add(answering)
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if relay.complete:  # then the server reports a disconnect, too; what is left are the replica's notes
                await asyncio.wait([answering])
        finally:
            self._answering.discard(answering)
            leaving.cancel()
            answering.cancel()
        try:
            await answering
        except asyncio.CancelledError:
            if not self._closing:
                await relay.fail(ClientLeftError("The client went away."))
            else:
                text = "The server was stopped in the middle of the answer."
                await relay.fail(NotReadyError(text, "Ask again when it is back."))

    async def close(self, drain_s: float) -> None:
        """Refuse new requests, and give those accepted ``drain_s`` seconds to end."""
        self._closing = True
        if self._answering:
            await asyncio.wait(self._answering, timeout=drain_s)
        for task in self._answering:
            task.cancel()

    async def _answer(self, call: Call, relay: Relay) -> None:
        for left in reversed(range(TRIES)):
            try:
                return await self._ask(call, relay, is_last=left == 0)
            except _ElsewhereError:
                pass
            except ReplicaLostError as error:
                if relay.committed or left == 0:
                    return await relay.fail(error)
            except MonolaneError as error:
                return await relay.fail(error)
            self.retried += 1
            call = replace(call, tried=(*call.tried, relay.forget()))

    async def _ask(self, call: Call, relay: Relay, is_last: bool) -> None:
        """Pass a request on to one replica, and its response back."""
        async with aclosing(self.replicas.answer(call)) as pieces:
            async for piece in pieces:
                if not is_last and not relay.committed and relay.has_failed(piece):
                    raise _ElsewhereError
                for message in piece:
                    if message["type"] == ACCEPTED:
                        relay.replica = message["replica"]
                    elif message["type"] == NOTES:
                        note(relay.scope, **message["notes"])
                    else:
                        await relay.take(message)


class _ElsewhereError(Exception):
    """The replica has failed, or cannot take the request: another one may."""


def create_front(
    front: Front, *, api_key: str | None = None, only_local: bool = True, allow_origins: Sequence[str] = ()
) -> FastAPI:
    """The front behind the server's middleware. Two routes are about all replicas; the others are a replica's own."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    async def health() -> JSONResponse:
        states = await front.replicas.states()
        if any(state["status"] == "ready" for state in states):
            return JSONResponse({"status": "ok"})
        return JSONResponse(states[0], 503, {"Retry-After": "1"})

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.joined(await front.replicas.metrics(), front.retried), media_type=TYPE)

    app.mount("/", front)
    add_failure_handlers(app)
    protect(app, api_key=api_key, only_local=only_local, allow_origins=allow_origins)
    return app


async def _body(receive: Receive) -> bytes | None:
    """The whole body of a request; None where the client leaves before."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
