"""Errors as HTTP responses, in the formats that clients of OpenAI, Anthropic and Ollama expect."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from monolane.errors import ContextLengthError, EngineFailedError, MonolaneError, UnavailableError, UsageError

MAX_CHARS = 500  # of a message: what a client sent may be quoted, but not all of it
MESSAGES_ROUTES = "/v1/messages"  # Anthropic's clients expect another format,
OLLAMA_ROUTES = "/api/"  # and Ollama's a third

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


# What a message may have that a model of texts cannot read, by the names that the APIs have for it.
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image"), "images are"),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "audio is"),
    **dict.fromkeys(("video", "video_url", "input_video"), "videos are"),
    **dict.fromkeys(("file", "input_file", "document"), "files are"),
}

# Pydantic's kinds of mistakes, in our words.
_WRONG = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_type": "must be a string",
    "too_long": "has more than {max_length} entries",
    "union_tag_not_found": "has no type",
}


class HttpError(Exception):
    """An error response. ``for_anthropic`` is the message for clients of Anthropic's API, where they expect another.
    ``closes``: the connection is closed."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        for_anthropic: str | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.retry_after_s = status, kind, code, retry_after_s
        self.message = _sendable(message)
        self.closes = closes or status in (408, 413)  # the rest of the request's body is not read
        self.for_anthropic = for_anthropic or self.message
        self.param = None if param is None else _sendable(param)

    def body(self) -> dict[str, Any]:
        """The body for clients of OpenAI's API."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        other = "invalid_request_error" if self.status < 500 else "api_error"
        return {
            "type": "error",
            "error": {"type": _ANTHROPIC_KINDS.get(self.status, other), "message": self.for_anthropic},
        }

    def response(self, path: str) -> JSONResponse:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.closes:
            headers["Connection"] = "close"
        if self.status == 501:
            headers["X-Should-Retry"] = "false"  # OpenAI's and Anthropic's clients look for it
        return JSONResponse(self._body_for(path), self.status, headers)

    def _body_for(self, path: str) -> dict[str, Any]:
        if path.startswith(OLLAMA_ROUTES):
            return {"error": self.message}
        return self.anthropic_body() if path.startswith(MESSAGES_ROUTES) else self.body()


class ClientLeftError(MonolaneError):
    """The client has closed the connection; the error is for the log only."""


def failure_of(error: Exception) -> HttpError:
    """The response that a client gets for an error."""
    match error:
        case HttpError():
            return error
        case ClientLeftError():
            return HttpError(499, _one_line(error))  # nginx's status for it
        case ContextLengthError():
            return _too_long(error)
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


def _too_long(error: ContextLengthError) -> HttpError:
    """In the words of OpenAI and of Anthropic, which clients look for before they shorten a conversation."""
    size = f"{error.size} {error.units}"
    message = (
        f"This model's maximum context length is {error.context} tokens. However, your messages resulted in {size}. "
        "Please reduce the length of the messages."
    )
    return HttpError(
        400,
        message,
        param="messages",
        code="context_length_exceeded",
        for_anthropic=f"prompt is too long: {size} > {error.context} tokens maximum",
    )


def unsupported(param: str, message: str) -> HttpError:
    """The response to a field, or a value of it, that this server does not support."""
    return HttpError(400, message, param=param, code="unsupported_parameter")


def _invalid(error: RequestValidationError) -> HttpError:
    """The response to a body that the route does not take: it names one field that is wrong."""
    # Of the alternative types of a value, the one whose validation got furthest is what the client meant.
    first = max(error.errors(), key=lambda entry: len(entry["loc"]))
    kind, context = first["type"], first.get("ctx", {})
    if kind == "json_invalid":
        return HttpError(400, f"The body is not valid JSON: {context['error']}.")
    *path, last = (str(part) for part in first["loc"])
    path = [part for part in path[1:] if not _ALTERNATIVE.fullmatch(part)]
    is_field = kind == "extra_forbidden" or not _ALTERNATIVE.fullmatch(last)
    param = ".".join([*path, last] if is_field and len(first["loc"]) > 1 else path) or None
    given = str(context.get("tag", first.get("input")))
    if given in _MEDIA and kind in ("literal_error", "union_tag_invalid"):
        place = ".".join(path) if last == "type" else param
        return unsupported(place or "", f"{place}: {_MEDIA[given]} not supported; the model reads text.")
    if kind == "extra_forbidden" or context.get("max_length") == 0:
        return unsupported(param or "", f"{param} is not supported by this server.")
    if kind == "literal_error":
        return unsupported(param or "", f"{param} {given!r} is not supported: send {context['expected']}.")
    if kind == "union_tag_invalid":
        tags = context["expected_tags"]
        return unsupported(param or "", f"{param} with the type {given!r} is not supported: there are {tags}.")
    wrong = _WRONG.get(kind, "is not what it should be: {msg}").format(msg=first["msg"], **context)
    return HttpError(400, f"{param or 'The body'} {wrong}.", param=param, code="invalid_value")


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
