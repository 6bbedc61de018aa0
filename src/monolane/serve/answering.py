"""From an answer's events to an HTTP response, whole or as server-sent events, in the format of the client's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from monolane.engine.answer import Answer, Event, Queued, Started
from monolane.engine.result import Completion, Delta
from monolane.errors import MonolaneError, NotReadyError, SlowReaderError
from monolane.serve.failures import ClientLeftError, HttpError, failure_of
from monolane.serve.request_log import note
from monolane.serve.served_model import ServedModel

PAUSE_S = 0.010  # between two pieces: at 5,000 tok/s each carries fifty tokens
POLL_S = 0.002  # between two checks during a pause whether the answer has ended
QUIET_S = 15.0  # without anything to send; then a comment keeps proxies from closing the connection
MAX_WARNING = 1000  # characters of the header for warnings
SEND_S = 60.0  # for a piece to be sent; a client that reads more slowly is cut off


class Dialect(Protocol):
    """How one API writes an answer. ``whole`` returns the body of a response; the others return parts of a stream.
    ``comment`` is what a client does not see; it may be empty."""

    @property
    def media_type(self) -> str: ...
    def comment(self, text: str) -> str: ...
    def begin(self) -> Iterable[str]: ...
    def piece(self, delta: Delta) -> Iterable[str]: ...
    def end(self, result: Completion) -> Iterable[str]: ...
    def failure(self, error: HttpError) -> Iterable[str]: ...
    def whole(self, result: Completion) -> dict[str, Any]: ...


class ServerSentEvents:
    """What the dialects have in common whose streams are server-sent events."""

    media_type = "text/event-stream"

    def comment(self, text: str) -> str:
        return f": {text}\n\n"


def event(body: dict[str, Any], name: str | None = None) -> str:
    """One server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {to_json(body)}\n\n"


def to_json(body: Any) -> str:
    return msgspec.json.encode(body).decode()


async def respond(
    model: ServedModel, request: Request, answer: Answer, dialect: Dialect, stream: bool, warnings: Sequence[str] = ()
) -> Response:
    """The response to a request that was submitted to the engine. ``warnings`` go into a header."""
    headers = warning_headers(warnings)
    if stream:
        return AnswerStream(model, answer, dialect, headers)
    result = await whole(model, request, answer)
    return Response(to_json(dialect.whole(result)), media_type="application/json", headers=headers)


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """HTTP's header for what a response lacks; 299 is its code for a lasting lack."""
    text = "; ".join(warnings)[:MAX_WARNING].encode("ascii", "replace").decode().replace('"', "'")
    return {"Warning": f'299 monolane "{text}"'} if warnings else {}


async def whole(model: ServedModel, request: Request, answer: Answer) -> Completion:
    """The whole answer. When the client leaves, the request is cancelled."""
    async with cancelled_with_client(request.receive, answer) as client:
        try:
            async for _ in paced(answer):
                pass
            result = completed(answer, client)
        except MonolaneError as error:
            record(model, request.scope, answer, error)
            raise
    record(model, request.scope, answer)
    return result


class AnswerStream(Response):
    """The answer piece by piece. When the response ends, for whatever reason, the request is cancelled."""

    def __init__(self, model: ServedModel, answer: Answer, dialect: Dialect, headers: Mapping[str, str]) -> None:
        super().__init__(
            media_type=dialect.media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._model, self._answer, self._dialect = model, answer, dialect
        self._failure: MonolaneError | None = None  # after the first byte was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(receive, self._answer) as client:
            events = self._events(client)
            try:
                first = await anext(events)
            except MonolaneError as error:  # nothing has been sent: the response can still have an error status
                record(self._model, scope, self._answer, error)
                await failure_of(error).response(scope["path"])(scope, receive, send)
                return
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send(first, send)
                async for text in events:
                    await self._send(text, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except SlowReaderError as error:
                self._failure = error
            except TimeoutError:
                self._failure = SlowReaderError(f"Nothing of the answer was read for {SEND_S:.0f} s.")
            # Where the response is not complete, returning closes the connection: a client that does not read could not
            # receive an error.
            record(self._model, scope, self._answer, self._failure)

    async def _send(self, text: str, send: Send) -> None:
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _events(self, client: Client) -> AsyncIterator[str]:
        began = False
        try:
            async for happened in paced(self._answer):
                if text := self._text(happened):
                    yield text
                    began = True
            yield "".join(self._dialect.end(completed(self._answer, client)))
        except SlowReaderError:
            raise
        except MonolaneError as error:
            if not began:
                raise
            self._failure = error
            yield "".join(self._dialect.failure(failure_of(error)))

    def _text(self, happened: Event | None) -> str:
        match happened:
            case None:
                return self._dialect.comment("waiting")
            case Queued(position):
                return self._dialect.comment(f"queue {position}")
            case Started():
                return "".join(self._dialect.begin())
            case Delta():
                return "".join(self._dialect.piece(happened))


async def paced(answer: Answer) -> AsyncIterator[Event | None]:
    """The events of an answer, with a pause after each piece, so that the next one carries more tokens. None where no
    event came for QUIET_S."""
    while True:
        try:
            async with asyncio.timeout(QUIET_S):
                happened = await anext(answer)
        except StopAsyncIteration:
            return
        except TimeoutError:
            yield None
            continue
        yield happened
        if isinstance(happened, Delta):
            for _ in range(round(PAUSE_S / POLL_S)):
                if answer.over:
                    break
                await asyncio.sleep(POLL_S)


@dataclass
class Client:
    gone: bool = False  # it has closed the connection


def completed(answer: Answer, client: Client) -> Completion:
    """The result of an answer; an error where it was cancelled."""
    if client.gone:
        raise ClientLeftError("The client went away.")
    if answer.result.finish_reason == "abort":
        raise NotReadyError("The server was stopped in the middle of the answer.", "Ask again when it is back.")
    return answer.result


@asynccontextmanager
async def cancelled_with_client(receive: Receive, answer: Answer) -> AsyncIterator[Client]:
    """Cancel the request when the client closes the connection, and when the block is left for whatever reason."""

    client = Client()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        client.gone = True
        answer.cancel()

    watching = asyncio.create_task(watch())
    async with answer:
        try:
            yield client
        finally:
            watching.cancel()


def record(model: ServedModel, scope: Scope, answer: Answer, error: Exception | None = None) -> None:
    """Write a request that is over to the log and the metrics."""
    note(scope, prompt_tokens=answer.prompt_tokens)
    if error is not None:
        note(scope, error=str(error).split("\n")[0])
    elif answer.over and not answer.failed:
        result = answer.result
        timings = result.timings
        note(
            scope,
            finish=result.finish_reason,
            cached_tokens=timings.cached_tokens,
            tokens=timings.generated_tokens,
            queue_s=timings.queue_s,
            first_token_s=timings.first_token_s,
            tokens_per_second=timings.tokens_per_second,
        )
        model.metrics.observe(result)
