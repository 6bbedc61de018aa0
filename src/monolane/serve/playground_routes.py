"""The playground: a page at ``/``, its files, and what it needs to know about the machine."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

FILES = Path(__file__).with_name("playground")

# The page loads its own files, talks to its own server, and nothing else. Trusted Types: no text ever becomes markup.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)

# What a model wrote runs in the preview: an origin of its own that may draw and compute, and reach nobody. The policy
# covers everything that loads; the allowlist, in browsers that have it, connections of any other kind (WebRTC) too.
PREVIEW_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)

HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked about each time: an upgraded server shows its new page at once
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
}


PREVIEW_HEADERS = {"Content-Security-Policy": PREVIEW_POLICY, "Connection-Allowlist": "()"}


@dataclass(frozen=True)
class Machine:
    """What is served, and on what."""

    model: str
    device: str  # for people: "NVIDIA H200", "cpu (2 x avx512)"
    bytes_per_token: int  # weights read for each decoded token
    ceiling_bytes_per_s: float | None  # the read bandwidth this machine really gives; None: not measured
    context: int  # tokens of prompt and answer together


def add_playground(app: FastAPI, machine: Callable[[], Machine]) -> None:
    """Serve the page. ``machine`` is called for each ``GET /machine``; while the model loads, it raises what the other
    routes raise. The page and its files hold no secrets and need no key (the page asks for it); ``/machine`` does."""
    mimetypes.add_type("text/javascript", ".js")  # some systems' own tables say otherwise, and nosniff is strict
    files = _Files(directory=FILES)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/machine")
    async def describe() -> Machine:
        return machine()

    app.mount("/playground", files, name="playground")


class _Files(StaticFiles):
    """Files with the headers that keep the page to itself, and the preview in its box."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = PAGE_POLICY
        if Path(full_path).name == "preview.html":
            response.headers.update(PREVIEW_HEADERS)
        return response
