"""Access control: the API key, and, for a local server without one, a check of the Host header."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from monolane.serve.failures import HttpError

OPEN_PATHS = ("/", "/health")  # and the playground's files: they hold no secret, and the page asks for the key
OPEN_PREFIX = "/playground/"


class Guard:
    """Refuses requests without the API key. Where the server has no key and listens on loopback only, it refuses
    requests to any but local names: they come from a stranger's domain that points at this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, api_key: str | None, only_local: bool) -> None:
        self._app = app
        self._digest = None if api_key is None else _digest(api_key)
        self._only_local = only_local and api_key is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope["path"], Headers(scope=scope))):
            await refusal.response(scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> HttpError | None:
        if self._only_local and not is_local_name(headers.get("host", "localhost")):
            message = "This server is for this machine only: ask for it as localhost, or start it with an API key."
            return HttpError(403, message, "permission_error")
        if self._digest is None or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return None
        sent = sent_key(headers)
        # Digests have one length whatever the key's, and are compared in constant time.
        if sent is not None and hmac.compare_digest(_digest(sent), self._digest):
            return None
        message = "The API key is missing or wrong: send it as Authorization: Bearer KEY, or as x-api-key."
        return HttpError(401, message, "authentication_error", code="invalid_api_key")


def sent_key(headers: Mapping[str, str]) -> str | None:
    """The API key of a request: ``Authorization: Bearer`` as OpenAI has it, or ``x-api-key`` as Anthropic has it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def is_local_name(host: str) -> bool:
    """Whether a Host header names localhost or an IP address, and so no domain that a stranger controls."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
