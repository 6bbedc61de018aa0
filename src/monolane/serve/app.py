"""The server as an ASGI application: the routes, inside the middleware for log, access control and limits."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import Scope

import monolane
from monolane.serve.addresses import Addresses
from monolane.serve.failures import add_failure_handlers
from monolane.serve.guard import Guard
from monolane.serve.leases import Leases
from monolane.serve.limits import Limits
from monolane.serve.ollama_routes import add_ollama
from monolane.serve.playground_routes import Machine, add_playground
from monolane.serve.reference import add_reference
from monolane.serve.request_log import RequestLog
from monolane.serve.routes import add_routes
from monolane.serve.service import Service


def create_app(
    service: Service, *, api_key: str | None = None, only_local: bool = True, allow_origins: Sequence[str] = ()
) -> FastAPI:
    """``only_local``: the server listens on loopback only. ``allow_origins``: other sites whose pages may use it."""
    app = create_routes(service)
    protect(app, api_key=api_key, only_local=only_local, allow_origins=allow_origins)
    return app


def create_routes(service: Service) -> FastAPI:
    app = FastAPI(title="Monolane", version=monolane.__version__, docs_url=None, redoc_url=None)
    add_routes(app, service)
    add_ollama(app, service)

    async def machine(name: str | None, scope: Scope) -> Machine:
        return (await service.model(name, scope)).machine()

    add_playground(app, machine)
    add_reference(app)
    add_failure_handlers(app)
    app.add_middleware(Leases)
    return app


def protect(app: FastAPI, *, api_key: str | None, only_local: bool, allow_origins: Sequence[str]) -> None:
    """Put an application behind the middleware; what is added last is the outermost."""
    app.add_middleware(Limits)
    app.add_middleware(Guard, api_key=api_key, only_local=only_local)
    app.add_middleware(Addresses)
    if allow_origins:
        app.add_middleware(CORSMiddleware, allow_origins=allow_origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(RequestLog)
