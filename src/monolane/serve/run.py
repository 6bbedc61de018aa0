"""The server process: it listens at once, loads the model meanwhile, and ends gracefully."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from monolane.errors import NotReadyError, ResourceError, UsageError
from monolane.serve.app import create_app
from monolane.serve.connections import IDLE_S, bounded
from monolane.serve.limits import MAX_HEADER_BYTES
from monolane.serve.service import Service

DRAIN_S = 3.0  # for accepted requests to end after Ctrl-C


@dataclass(frozen=True)
class Settings:
    """Where the server listens, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    allow_origins: tuple[str, ...] = ()
    max_connections: int = 512


def serve(service: Service, settings: Settings, say: Callable[[str], None]) -> None:
    """Listen at once, load the model in the background, serve until SIGINT or SIGTERM. A failed load raises."""
    listener = listen(settings.host, settings.port)
    url = address(listener)
    if settings.api_key is None and not is_loopback(listener):
        say("Anyone who reaches this machine can use the server: set an API key (--api-key-file).")
    first, *others = service.models
    say(f"Loading {first.model_id}; listening on {url}")
    if others:
        say(f"Loaded when they are asked for: {', '.join(other.model_id for other in others)}.")

    def ready() -> None:
        target = first.engine.target
        if service.ceiling() is None:
            say("How fast this machine reads is not known: run 'monolane ceiling' once to see how much of it is used.")
        where = target.name if target else "?"
        say(f"{first.model_id} is ready on {where}: playground {url}/ (in a browser), API {url}/v1")

    server = Server(service, settings, ready, is_loopback(listener))
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure


class AppServer(uvicorn.Server):
    """Listens at once, and calls ``start`` meanwhile, then ``ready``; where that fails, it ends. ``close`` gets the
    seconds that accepted requests may still take."""

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        start: Callable[[], Awaitable[None]],
        ready: Callable[[], None],
        close: Callable[[float], Awaitable[None]],
    ) -> None:
        config = uvicorn.Config(
            app,
            http=bounded(settings.max_connections),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=round(2 * DRAIN_S),  # a client that does not read cannot delay the end longer
        )
        super().__init__(config)
        self._start, self._ready, self._close = start, ready, close
        self.failure: Exception | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loading = asyncio.create_task(self._load())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(self._close(0.0 if self.failure else DRAIN_S))
        await super().shutdown(sockets)
        await closing
        await self._loading

    async def _load(self) -> None:
        try:
            await self._start()
        except NotReadyError:
            pass  # the server was stopped while the model was loading
        except Exception as error:
            self.failure = error
            self.should_exit = True
        else:
            self._ready()


class Server(AppServer):
    """The server of one service, which it starts and closes."""

    def __init__(
        self, service: Service, settings: Settings, ready: Callable[[], None], only_local: bool = True
    ) -> None:
        app = create_app(service, api_key=settings.api_key, only_local=only_local, allow_origins=settings.allow_origins)
        super().__init__(app, settings, service.start, ready, service.close)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Errors say which of host and port to change."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((host, port), family=family)
    except (socket.gaierror, OverflowError) as error:
        raise UsageError(
            f"{host}:{port} is no address to listen on: {error}.", "Check --host; --port is 0 to 65535."
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ResourceError(
                f"Port {port} on {host} is in use.", "Stop the other program, or choose another port with --port."
            ) from error
        raise ResourceError(
            f"{host}:{port} cannot be listened on: {error.strerror}.", "Choose others with --host and --port."
        ) from error


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
