"""What crosses between the front and the replicas: a request as a whole, and the ASGI messages of its response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

from monolane.errors import EngineFailedError

# Messages of ours among those of ASGI: the first of every response names the replica, others have what the log wants.
ACCEPTED = "monolane.accepted"
NOTES = "monolane.notes"

_CARRIED = ("type", "asgi", "http_version", "method", "scheme", "path", "query_string", "headers", "client", "server")
_SECRETS = (b"authorization", b"x-api-key", b"cookie")  # the front has seen to them


@dataclass(frozen=True)
class Call:
    """A request for a replica. ``conversation`` is what its prompt begins with (None: it has no prompt), and ``tried``
    names the replicas that could not answer it."""

    scope: Scope
    body: bytes
    conversation: bytes | None
    tried: Sequence[str] = ()


class ReplicaLostError(EngineFailedError):
    """A replica died, or its machine did, before its response was complete."""


def carried(scope: Scope) -> Scope:
    """The part of a request's scope that a replica gets."""
    kept = {key: scope[key] for key in _CARRIED if key in scope}
    return kept | {"headers": [pair for pair in scope["headers"] if pair[0] not in _SECRETS]}
