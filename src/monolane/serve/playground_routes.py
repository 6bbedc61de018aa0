"""The playground: the page at ``/``, its files, and ``/machine``, which describes model and machine to it."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

from monolane.model.generation_config import SuggestedSampling

FILES = Path(__file__).with_name("playground")

# The page loads files of its own server, and connects to nothing else. Trusted Types: no text can become markup.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)

# HTML that a model wrote runs in the preview: an origin of its own, which may draw and compute but not connect. The
# policy covers everything that loads; the allowlist, in browsers that have it, other connections (WebRTC) too.
PREVIEW_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)

HEADERS = {
    "Cache-Control": "no-cache",  # kept, and revalidated each time: an upgraded server shows its new page at once
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
    """The model that is served, and the machine it runs on."""

    model: str
    device: str  # a description for people, such as "cpu (2 x avx512)"
    bytes_per_token: int  # weights read for each decoded token
    ceiling_bytes_per_s: float | None  # the measured read bandwidth of the machine; None: not measured
    context: int  # tokens of prompt and answer together
    can_chat: bool  # False: it has no chat template, and continues text
    sampling: SuggestedSampling  # what the page sends unless told otherwise


def add_playground(app: FastAPI, machine: Callable[[str | None, Scope], Awaitable[Machine]]) -> None:
    """Serve the page. ``machine`` is called for each ``GET /machine`` with the name of a model (None: the first) and
    the scope of the request; while the model loads, it raises NotReadyError. The page
    and its files hold no secrets and need no API key; ``/machine`` needs it."""
    mimetypes.add_type("text/javascript", ".js")  # some systems map it to another type, which nosniff would refuse
    files = _Files(directory=FILES)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/machine")
    async def describe(request: Request, model: str | None = None) -> Machine:
        return await machine(model, request.scope)

    app.mount("/playground", files, name="playground")


class _Files(StaticFiles):
    """Files with the headers that isolate the page and the preview."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = PAGE_POLICY
        if Path(full_path).name == "preview.html":
            response.headers.update(PREVIEW_HEADERS)
        return response
