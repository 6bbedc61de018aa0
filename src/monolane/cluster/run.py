"""``monolane serve --ray``: the front in this process, replicas wherever Ray puts them."""

from __future__ import annotations

import re
from collections.abc import Callable

from monolane.cluster import deployment
from monolane.cluster.deployment import Deployment, Wanted
from monolane.cluster.front import Front, create_front
from monolane.errors import UsageError
from monolane.serve.run import AppServer, Settings, address, is_loopback, listen
from monolane.serve.service import Service


def bounds(text: str) -> tuple[int, int]:
    """The least and the most replicas: "3", or "1-4"."""
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip())
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(f"--replicas is {text!r}.", "Give a number, such as 2, or bounds, such as 1-4.")
    return low, high


def serve_replicas(
    make: Callable[[], Service], name: str, wanted: Wanted, settings: Settings, say: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. ``make`` makes a replica's service, in its own process, of the model that clients
    call ``name``."""
    listener = listen(settings.host, settings.port)
    url = address(listener)
    only_local = is_loopback(listener)
    if settings.api_key is None and not only_local:
        say("Anyone who reaches this machine can use the server: set an API key (--api-key-file).")
    deployment.connect()
    replicas = Deployment(make, name, deployment.size_of(wanted), settings.max_connections)
    front = Front(replicas)
    app = create_front(front, api_key=settings.api_key, only_local=only_local, allow_origins=settings.allow_origins)
    number = str(wanted.low) if wanted.low == wanted.high else f"{wanted.low} to {wanted.high}"
    say(f"Loading {name} with replicas: {number}; listening on {url}")

    def ready() -> None:
        say(f"{name} is ready on Ray: playground {url}/ (in a browser), API {url}/v1")

    async def close(drain_s: float) -> None:
        await front.close(drain_s)
        await replicas.close()

    server = AppServer(app, settings, replicas.start, ready, close)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
