"""Limits on connections: how many there may be, and how long the headers of a request may take."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 15.0  # for the headers of a request to arrive
IDLE_S = 30  # between two requests on one connection

_BODY = b'{"error":{"message":"Too many connections.","type":"service_unavailable","param":null,"code":null}}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY


def bounded(most: int) -> type[H11Protocol]:
    """The protocol class of a server that allows ``most`` connections at a time; a further one gets a 503 and is
    closed."""

    class Bounded(Connection):
        limit = most

    return Bounded


class Connection(H11Protocol):
    """An HTTP connection that is closed where the headers of a request do not arrive within HEADER_S."""

    limit = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            transport.write(_FULL)
            transport.close()
        else:
            self._timer = self.loop.call_later(HEADER_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waits_for_headers = self.conn.their_state is h11.IDLE
        if not waits_for_headers:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEADER_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
