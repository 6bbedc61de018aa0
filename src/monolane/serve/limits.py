"""Limits on the size of requests, and on how long they may take to arrive."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monolane.serve.failures import HttpError

MAX_HEADER_BYTES = 32 << 10
MAX_BODY_BYTES = 4 << 20  # far more than any context holds
MAX_HELD_BYTES = 64 << 20  # in all requests together
BODY_S = 30.0  # for the whole body to arrive
LINGER_S = 1.0  # for the rest of a body that was refused

_JSON = re.compile(r"application/([\w.-]+\+)?json")


class Limits:
    """Refuses headers that are too large, and bodies that are no JSON, too large or too slow. A body that announces its
    size is refused before it comes; others are counted while they arrive."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0  # bytes of the bodies of all current requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := refusal_of(scope)) is not None:
            await refuse(refusal, scope, receive, send)
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


async def refuse(refusal: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer before the body has come. A client that is still sending would not get to see the answer if the connection
    were closed at once, so what it sends is dropped for a moment."""
    response = refusal.response(scope["path"])
    if not refusal.closes or "expect" in Headers(scope=scope):  # it waits for the answer before it sends anything
        await response(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


def refusal_of(scope: Scope) -> HttpError | None:
    """The response to a request whose headers alone say that it is not taken."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        return HttpError(431, f"The headers are larger than {MAX_HEADER_BYTES >> 10} KiB.")
    headers = Headers(scope=scope)
    length, kind = headers.get("content-length"), headers.get("content-type", "")
    if length is not None and "transfer-encoding" in headers:
        # Two servers in a row may disagree where such a request ends, and take its body for another request.
        return HttpError(400, "The request has both Content-Length and Transfer-Encoding.", closes=True)
    if length is not None and length.isdigit() and int(length) > MAX_BODY_BYTES:
        return HttpError(413, f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.", closes=True)
    if scope["method"] == "POST" and not _JSON.fullmatch(kind.partition(";")[0].strip().lower()):
        told = f"The body is {kind.partition(';')[0] or 'of no type'}: "
        return HttpError(415, told + "send JSON, with the header Content-Type: application/json.", closes=True)
    return None
