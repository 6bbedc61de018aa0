"""The request log: one line of key=value pairs for each request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = logging.getLogger("monolane.serve")
EVERYTHING = logging.getLogger("monolane")  # the engine's log too
LEVELS = ("debug", "info", "warning", "error")
QUIET_PATHS = ("/", "/health", "/metrics", "/machine")  # polled by pages and monitors: logged at level debug
QUIET_PREFIX = "/playground/"

NOTES = "monolane.notes"  # in a request's scope: what routes add to its line
_PLAIN = re.compile(r"[\w.:/+-]+")


def note(scope: Scope, **pairs: Any) -> None:
    """Add key=value pairs to the log line of this request."""
    scope.setdefault(NOTES, {}).update(pairs)


class RequestLog:
    """The middleware that writes the line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        notes = scope.setdefault(NOTES, {})

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            path = scope["path"]
            is_quiet = status < 400 and (path in QUIET_PATHS or path.startswith(QUIET_PREFIX))
            level = logging.DEBUG if is_quiet else logging.INFO
            if LOGGER.isEnabledFor(level):
                client = (scope.get("client") or ("-",))[0]
                seconds = time.perf_counter() - start
                about = {"method": scope["method"], "path": path, "status": status, "client": client, "s": seconds}
                LOGGER.log(level, "request %s", pairs(about | notes))


def pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in values.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")  # microseconds, without trailing zeros
    text = str(value)[:300]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def set_up(level: str) -> None:
    """Log to stderr from this level on; of uvicorn's own messages, warnings and errors."""
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    EVERYTHING.handlers[:] = [handler]
    EVERYTHING.setLevel(level.upper())
    EVERYTHING.propagate = False
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.handlers[:] = [handler]
    uvicorn.setLevel(max(logging.WARNING, EVERYTHING.level))
    uvicorn.propagate = False
    uvicorn.filters[:] = [_is_news]


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn is worth logging. Connections of clients that do not read are closed on purpose, or
    are still open when the server ends; uvicorn reports both as errors."""
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not record.getMessage().startswith(("ASGI callable returned without", "Cancel "))
