"""Ties a request to the engine that answers it: from its beginning to the end of its response."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

_STACK = "monolane.leases"


class Leases:
    """The middleware that ends what a request holds, once its response has been sent or given up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            scope[_STACK] = stack
            await self._app(scope, receive, send)


async def hold(scope: Scope, lease: AbstractAsyncContextManager[object]) -> None:
    """Enter a context, and leave it when the response to this request has ended."""
    stack: AsyncExitStack = scope[_STACK]
    await stack.enter_async_context(lease)
