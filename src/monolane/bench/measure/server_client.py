"""A client of OpenAI-compatible servers that measures when a streamed answer begins and ends, and its tokens.

Tokens are counted by the server's usage object, never by events: a server may send several tokens in an event, or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from monolane.errors import UnavailableError, UsageError

SILENCE_S = 120.0  # timeout of the socket: a working server sends something before
LONGEST_S = 900.0  # deadline of one answer
MAX_LINE, MAX_ERROR = 1 << 20, 1 << 16  # bytes

# Route and extra fields of a request, from the best to the least: with the fields answers have a fixed length, but some
# servers refuse fields that they do not know.
FIXED: tuple[dict[str, bool], ...] = ({"ignore_eos": True, "min_tokens": True}, {"ignore_eos": True}, {})
WAYS = tuple((route, fields) for route in ("/completions", "/chat/completions") for fields in FIXED)
TRY_ANOTHER = (400, 404, 405, 422, 501)  # HTTP statuses after which the next way is tried


@dataclass(frozen=True)
class Heard:
    """One answer. Times are by the client's clock, from sending the request."""

    first_s: float  # until the first event with text, or the end where there was none
    seconds: float  # until the end
    tokens: int
    prompt_tokens: int
    pieces: int  # events with text
    text: str


class Client:
    """One connection. The first request finds out which of ``WAYS`` the server accepts; all others use the same."""

    def __init__(self, url: str, api_key: str | None = None, model: str | None = None) -> None:
        scheme, host, port, path = _place(url)
        self.url = f"{scheme}://{host}{f':{port}' if port else ''}{path}"
        self._root = path if path.endswith("/v1") else f"{path}/v1"
        self._connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(host, port, timeout=SILENCE_S)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._way: tuple[str, dict[str, bool]] | None = None
        self.model = model or self._first_model()

    @property
    def way(self) -> str:
        """The route and the extra fields that the server accepts, for the result."""
        route, fields = self._way or ("", {})
        return f"{self._root}{route}" + (f" with {' and '.join(fields)}" if fields else ", ends where the model ends")

    def ask(self, prompt: str | Sequence[int], tokens: int) -> Heard:
        """A greedy answer of ``tokens`` tokens, or fewer where the server knows no fixed length."""
        refusal: Exception | None = None
        for way in [self._way] if self._way else WAYS:
            try:
                heard = self._ask(*way, prompt, tokens)
            except _NotThisWayError as error:
                refusal = refusal or error
                continue
            self._way = way
            return heard
        raise UsageError(f"{self.url} does not answer: {refusal}", "Check the address and the name of the model.")

    def close(self) -> None:
        self._connection.close()

    def _ask(self, route: str, fields: dict[str, bool], prompt: str | Sequence[int], tokens: int) -> Heard:
        """Send one request and read its stream; raises ``_NotThisWayError`` if the server refuses route or fields."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        body |= {name: tokens if name == "min_tokens" else True for name in fields}
        if route == "/completions":
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        elif isinstance(prompt, str):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            raise _NotThisWayError("a prompt of token ids needs /v1/completions")
        began = perf_counter()
        response = self._send("POST", route, json.dumps(body))
        first_s, pieces, text, usage = None, 0, "", None
        for event in self._events(response, began):
            usage = event.get("usage") or usage
            if piece := _text_of(event):
                first_s = first_s or perf_counter() - began
                pieces, text = pieces + 1, text + piece
        seconds = perf_counter() - began
        made = _count(usage, "completion_tokens")
        if made is None:
            raise UsageError(
                f"{self.url} does not say how many tokens it made.",
                "Its streams must end with usage (stream_options.include_usage).",
            )
        return Heard(first_s or seconds, seconds, made, _count(usage, "prompt_tokens") or 0, pieces, text)

    def _events(self, response: HTTPResponse, began: float) -> Iterator[dict[str, Any]]:
        """The JSON objects of a stream of server-sent events, until its end."""
        try:
            while line := response.readline(MAX_LINE):
                if perf_counter() - began > LONGEST_S:
                    raise UnavailableError(f"{self.url} has not ended its answer within {LONGEST_S:.0f} s.")
                if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
                    continue
                event = json.loads(data)
                if not isinstance(event, dict) or event.get("error"):
                    raise UnavailableError(f"{self.url} failed while it answered: {_short(data)}")
                yield event
        except (OSError, HTTPException, ValueError) as error:
            self._connection.close()
            raise UnavailableError(
                f"The answer of {self.url} broke off: {_named(error)}.", "See what it says in its own log."
            ) from error

    def _send(self, method: str, route: str, body: str | None) -> HTTPResponse:
        try:
            self._connection.request(method, self._root + route, body, self._headers)
            response = self._connection.getresponse()
            if response.status == 200:
                return response
            said = response.read(MAX_ERROR)
            self._connection.close()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise UnavailableError(
                f"{self.url} cannot be reached: {_named(error)}.", "Start the server, or check --server."
            ) from error
        if response.status in (401, 403):
            raise UsageError(f"{self.url} wants another API key.", "Give it with --api-key.")
        message = f"status {response.status}: {_short(said)}"
        if response.status in TRY_ANOTHER:
            raise _NotThisWayError(message)
        raise UnavailableError(f"{self.url} failed with {message}", "See what it says in its own log.")

    def _first_model(self) -> str:
        try:
            listed = json.loads(self._send("GET", "/models", None).read(MAX_LINE))
            return str(listed["data"][0]["id"])
        except (_NotThisWayError, ValueError, LookupError, TypeError) as error:
            raise UsageError(
                f"{self.url} does not list its models.", "Name one: monolane bench MODEL --server URL."
            ) from error


class _NotThisWayError(Exception):
    """The server does not take this route or one of these fields."""


def _place(url: str) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path of a URL."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/")
    except ValueError:  # the port is not a number, or a bracket of an IPv6 address is missing
        pass
    raise UsageError(f"{url!r} is no address of a server.", "Give one such as http://127.0.0.1:8000/v1.")


def _text_of(event: dict[str, Any]) -> str:
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    delta = choices[0].get("delta") or {}
    found = choices[0].get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return found if isinstance(found, str) else ""


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value >= 0 else None


def _short(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())[:200]


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
