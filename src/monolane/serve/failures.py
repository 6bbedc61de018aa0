"""What goes wrong, in the form in which OpenAI's clients expect to hear of it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from monolane.errors import MonolaneError, UsageError
from monolane.serve.protocol import error_body


class HttpError(Exception):
    """An answer that is not the one asked for."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.kind, self.param, self.code)

    def response(self) -> JSONResponse:
        headers = {"Retry-After": "1"} if self.status == 503 else None  # seconds
        return JSONResponse(self.body(), self.status, headers)


def failure_of(error: Exception) -> HttpError:
    """How an error is told to a client."""
    match error:
        case HttpError():
            return error
        case UsageError():
            return HttpError(400, " ".join(str(error).split("\n")))
        case MonolaneError():
            return HttpError(500, " ".join(str(error).split("\n")), "server_error")
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return HttpError(error.status_code, str(error.detail))
        case _:
            return HttpError(500, "The server has failed; its log says why.", "server_error")


def _invalid(error: RequestValidationError) -> HttpError:
    """A body that is no chat request: the first thing wrong with it, by name."""
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    if first["type"] == "json_invalid":
        return HttpError(400, f"The body is not valid JSON: {first['ctx']['error']}.")
    if first["type"] == "extra_forbidden":
        return HttpError(400, f"{param} is not supported by this server.", param=param, code="unsupported_parameter")
    return HttpError(400, f"{param or 'The body'} is wrong: {first['msg']}.", param=param)


def add_failure_handlers(app: FastAPI) -> None:
    async def handle(_: Request, error: Exception) -> JSONResponse:
        return failure_of(error).response()

    for kind in (HttpError, MonolaneError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)
