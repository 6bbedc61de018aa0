"""Limits on the size of requests, and on how long they may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monolane.serve.failures import HttpError

MAX_HEADER_BYTES = 32 << 10
MAX_BODY_BYTES = 4 << 20  # far more than any context holds
MAX_HELD_BYTES = 64 << 20  # in all requests together
BODY_S = 30.0  # for the whole body to arrive


class Limits:
    """Refuses headers that are too large, and bodies that are too large or too slow. Bodies are counted while they
    arrive; the Content-Length header is not trusted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0  # bytes of the bodies of all current requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope.get("headers", ())) > MAX_HEADER_BYTES:
            refusal = HttpError(431, f"The headers are larger than {MAX_HEADER_BYTES >> 10} KiB.")
            await refusal.response(scope["path"])(scope, receive, send)
            return
        received, more = 0, True
        deadline = time.monotonic() + BODY_S

        async def counted() -> Message:
            nonlocal received, more
            if not more:  # the body is complete: what comes next is the disconnect, whenever that is
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body did not arrive within {BODY_S:.0f} s.") from None
            more = bool(message.get("more_body", False))
            received += (size := len(message.get("body", b"")))
            self._held += size
            if self._held > MAX_HELD_BYTES:
                raise HTTPException(503, "Too many large requests at once: try again in a moment.")
            if received > MAX_BODY_BYTES:
                raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.")
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= received
