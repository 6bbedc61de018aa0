"""The server as a process: its socket, the model that loads while it listens, its end."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable

import uvicorn

from monolane.engine.llm import LLM
from monolane.errors import ResourceError, UsageError
from monolane.serve.app import Service, create_app

SHUTDOWN_S = 3  # what answers under way get to end after Ctrl-C


def serve(open_llm: Callable[[], LLM], model_id: str, host: str, port: int, say: Callable[[str], None]) -> None:
    """Listen at once, load in the background, serve until told to stop. What goes wrong with the load is raised."""
    listener = listen(host, port)
    url = address(listener)
    service = Service(model_id)
    server = make_server(service)
    failures: list[Exception] = []

    def load() -> None:
        try:
            service.llm = open_llm()
        except Exception as error:
            failures.append(error)
            server.should_exit = True
        else:
            say(f"{model_id} is ready on {service.llm.target.name}: {url}/v1")

    say(f"Loading {model_id}; listening on {url}")
    threading.Thread(target=load, name="monolane-load", daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        service.close()
    if failures:
        raise failures[0]


def make_server(service: Service) -> uvicorn.Server:
    return _Server(service)


class _Server(uvicorn.Server):
    """Told to stop, it gives the answers under way a moment, then ends them itself: cutting them off would be logged
    as a failure, with a traceback."""

    def __init__(self, service: Service) -> None:
        cut_off = 2 * SHUTDOWN_S  # for clients that do not read: nobody waits for them
        super().__init__(uvicorn.Config(create_app(service), log_level="warning", timeout_graceful_shutdown=cut_off))
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(SHUTDOWN_S, self._end_answers)
        await super().shutdown(sockets)
        ending.cancel()

    def _end_answers(self) -> None:
        if (llm := self._service.llm) is not None:
            llm.close()  # those that wait are refused; the one that runs ends within a token


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says which of host and port to change. Port 0: any free one."""
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
