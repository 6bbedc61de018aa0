"""The way back of one response: what a replica sends goes on to the client once it cannot be asked for again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from starlette.types import Message, Scope, Send

from monolane.cluster.calls import NOTES
from monolane.errors import MonolaneError, NotReadyError, SlowReaderError
from monolane.serve.answering import SEND_S, event
from monolane.serve.chat_dialect import DONE
from monolane.serve.failures import MESSAGES_ROUTES, OLLAMA_ROUTES, ClientLeftError, HttpError, failure_of
from monolane.serve.request_log import note

_START = "http.response.start"


class Relay:
    """Holds a response back: a stream until its first token, anything else until it is complete. Only a stream's
    comments, which tell the place in the queue, pass at once.

    replica    the one that answers now
    committed  part of the answer was sent: another replica's answer would not fit
    complete   all of it was sent
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.replica = ""
        self.committed = self.complete = False
        self._send_on = send
        self._start: Message | None = None  # of the response that the replica sends
        self._is_stream = False
        self._begun = False  # the client has got the start of a response
        self._held: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == _START:
            self._is_stream = _is_stream(message)
            if self._begun and not self._is_stream:
                raise NotReadyError("No replica could go on with the request.", "Ask again in a moment.")
            self._start = message
            note(self.scope, replica=self.replica)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.committed:
            await self._send(body, more)
        elif self._is_stream and body.startswith(b":"):
            await self._send(body, True)
        else:
            # A stream begins with an event without tokens: what comes after that is the answer.
            self._held.append(body)
            if not more or (self._is_stream and len(self._held) > 1):
                self.committed = True
                await self._send(b"".join(self._held), more)

    def has_failed(self, piece: Sequence[Message]) -> bool:
        """Whether a piece tells that the replica has failed (500) or cannot take the request (503); of a stream, whose
        status is long sent, that it ends with an error."""
        start = next((message for message in piece if message["type"] == _START), self._start)
        if start is None:
            return False
        if start["status"] in (500, 503):
            return True
        return _is_stream(start) and any("error" in message["notes"] for message in piece if message["type"] == NOTES)

    def forget(self) -> str:
        """Forget the response so far, because another replica will be asked; the name of the one that gave it."""
        self._held.clear()
        self._start = None
        return self.replica

    async def fail(self, error: MonolaneError) -> None:
        """End the response with an error: as a response of its own where nothing was sent, else as an event."""
        if self.complete:
            return
        if not self._begun:
            raise error
        note(self.scope, error=error.message)
        if not isinstance(error, ClientLeftError | SlowReaderError):  # they would not get to see it
            await self._send(_event(self.scope["path"], failure_of(error)).encode(), False)

    async def _send(self, body: bytes, more: bool) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                if not self._begun:
                    assert self._start is not None
                    self._begun = True
                    await self._send_on(self._start)
                self.complete = not more
                await self._send_on({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise SlowReaderError(f"Nothing of the answer was read for {SEND_S:.0f} s.") from None


def _is_stream(start: Message) -> bool:
    return all(name != b"content-length" for name, _ in start["headers"])


def _event(path: str, error: HttpError) -> str:
    """An error in the middle of a stream, as the clients of this route expect it."""
    if path.startswith(MESSAGES_ROUTES):
        return event(error.anthropic_body(), "error")
    if path.startswith("/v1/responses"):
        told = {"type": "error", "code": error.code or error.kind, "message": error.message, "param": error.param}
        return event(told, "error")
    if path.startswith(OLLAMA_ROUTES):
        return json.dumps({"error": error.message}) + "\n"
    return event(error.body()) + DONE
