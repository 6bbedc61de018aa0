"""Errors as HTTP responses, in the formats that clients of OpenAI and Anthropic expect."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from monolane.errors import EngineFailedError, MonolaneError, UnavailableError, UsageError

MAX_CHARS = 500  # of a message: what a client sent may be quoted, but not all of it
MESSAGES_ROUTES = "/v1/messages"  # Anthropic's clients expect another format

# Anthropic's names for HTTP statuses; the others are invalid_request_error below 500, and api_error from there on.
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


# Pydantic puts the alternative types of a value into the path to it, under these names.
_ALTERNATIVE = re.compile(r"str|int|[A-Z]\w+|.*\[.*\]")


class HttpError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.retry_after_s = status, kind, code, retry_after_s
        self.message = _sendable(message)
        self.param = None if param is None else _sendable(param)

    def body(self) -> dict[str, Any]:
        """The body for clients of OpenAI's API."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        other = "invalid_request_error" if self.status < 500 else "api_error"
        return {"type": "error", "error": {"type": _ANTHROPIC_KINDS.get(self.status, other), "message": self.message}}

    def response(self, path: str) -> JSONResponse:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["Connection"] = "close"  # the rest of the request's body is not read
        body = self.anthropic_body() if path.startswith(MESSAGES_ROUTES) else self.body()
        return JSONResponse(body, self.status, headers)


class ClientLeftError(MonolaneError):
    """The client has closed the connection; the error is for the log only."""


def failure_of(error: Exception) -> HttpError:
    """The response that a client gets for an error."""
    match error:
        case HttpError():
            return error
        case ClientLeftError():
            return HttpError(499, _one_line(error))  # nginx's status for it
        case UsageError():
            return HttpError(400, _one_line(error))
        case UnavailableError():
            return HttpError(503, _one_line(error), "service_unavailable", retry_after_s=error.retry_after_s)
        case EngineFailedError():
            return HttpError(500, _one_line(error), "server_error", code="engine_failed")
        case MonolaneError():
            return HttpError(500, _one_line(error), "server_error")
        case RequestValidationError():
            return _invalid(error)
        case HTTPException(status_code=503):
            return HttpError(503, str(error.detail), "service_unavailable", retry_after_s=1)
        case HTTPException():
            return HttpError(error.status_code, str(error.detail))
        case _:
            return HttpError(500, "The server has failed; its log says why.", "server_error")


def unsupported(param: str, message: str) -> HttpError:
    """The response to a field, or a value of it, that this server does not support."""
    return HttpError(400, message, param=param, code="unsupported_parameter")


def _invalid(error: RequestValidationError) -> HttpError:
    """The response to a body that the route does not take: it names one field that is wrong."""
    # Of the alternative types of a value, the one whose validation got furthest is what the client meant.
    first = max(error.errors(), key=lambda entry: len(entry["loc"]))
    *path, last = (str(part) for part in first["loc"])
    path = [part for part in path[1:] if not _ALTERNATIVE.fullmatch(part)]
    is_field = first["type"] == "extra_forbidden" or not _ALTERNATIVE.fullmatch(last)
    param = ".".join([*path, last] if is_field and len(first["loc"]) > 1 else path) or None
    if first["type"] == "json_invalid":
        return HttpError(400, f"The body is not valid JSON: {first['ctx']['error']}.")
    if first["type"] == "extra_forbidden":
        return unsupported(param or "", f"{param} is not supported by this server.")
    return HttpError(400, f"{param or 'The body'} is wrong: {first['msg']}.", param=param)


def add_failure_handlers(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> JSONResponse:
        return failure_of(error).response(request.url.path)

    for kind in (HttpError, MonolaneError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def _one_line(error: MonolaneError) -> str:
    return " ".join(str(error).split("\n"))


def _sendable(text: str) -> str:
    """At most MAX_CHARS characters, and valid UTF-8."""
    short = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + " …"
    return short.encode("utf-8", "replace").decode("utf-8")
