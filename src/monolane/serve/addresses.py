"""Addresses as clients write them: with a slash at the end, and with HEAD where they only look."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

KEPT_PREFIX = "/playground/"  # a folder of files, for which the slash means something


class Addresses:
    """Leaves the slash away, and answers HEAD as GET; the server itself sends no body then."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path.startswith("/") and not path.startswith(("//", KEPT_PREFIX)):
                path = path.rstrip("/") or "/"
            # A copy: the server must go on knowing the method.
            scope = {**scope, "path": path, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        await self._app(scope, receive, send)
