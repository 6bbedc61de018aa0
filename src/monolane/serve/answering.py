"""From an answer's events to a response: whole or as a stream, in whichever dialect the client speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
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
from monolane.serve.service import Service

PAUSE_S = 0.010  # between two pieces: at 5,000 tok/s each carries fifty tokens
LOOK_S = 0.002  # how late the end of an answer may be noticed during a pause
QUIET_S = 15.0  # without anything to send; then a comment keeps proxies from hanging up
SEND_S = 60.0  # for a piece to leave; a client that reads so slowly is given up


class Dialect(Protocol):
    """How one API writes an answer: each method returns the events that tell of it."""

    def begin(self) -> Iterable[str]: ...
    def piece(self, delta: Delta) -> Iterable[str]: ...
    def end(self, result: Completion) -> Iterable[str]: ...
    def failure(self, error: HttpError) -> Iterable[str]: ...
    def whole(self, result: Completion) -> dict[str, Any]: ...


def event(body: dict[str, Any], name: str | None = None) -> str:
    """One server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {to_json(body)}\n\n"


def to_json(body: Any) -> str:
    return msgspec.json.encode(body).decode()


async def respond(service: Service, request: Request, answer: Answer, dialect: Dialect, stream: bool) -> Response:
    """The response to a request that has its place in the queue."""
    if stream:
        return AnswerStream(service, answer, dialect)
    async with leaving(request.receive, answer) as client:
        try:
            async for _ in paced(answer):
                pass
            result = finished(answer, client)
        except MonolaneError as error:
            told(service, request.scope, answer, error)
            raise
    told(service, request.scope, answer)
    return Response(to_json(dialect.whole(result)), media_type="application/json")


class AnswerStream(Response):
    """Server-sent events. The answer ends with the response, however that ends."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, answer: Answer, dialect: Dialect) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service, self._answer, self._dialect = service, answer, dialect
        self._failure: MonolaneError | None = None  # what came after the first byte

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with leaving(receive, self._answer) as client:
            texts = self._texts(client)
            try:
                first = await anext(texts)
            except MonolaneError as error:  # nothing has been sent: there can still be a status
                told(self._service, scope, self._answer, error)
                await failure_of(error).response(scope["path"])(scope, receive, send)
                return
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send(first, send)
                async for text in texts:
                    await self._send(text, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except SlowReaderError as error:
                self._failure = error
            except TimeoutError:
                self._failure = SlowReaderError(f"Nothing of the answer was read for {SEND_S:.0f} s.")
            # Where it is not complete, returning closes the connection, which is all that such a client can be told.
            told(self._service, scope, self._answer, self._failure)

    async def _send(self, text: str, send: Send) -> None:
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _texts(self, client: Client) -> AsyncIterator[str]:
        began = False
        try:
            async for happened in paced(self._answer):
                match happened:
                    case None:
                        yield ": waiting\n\n"
                    case Queued(position):
                        yield f": queue {position}\n\n"
                    case Started():
                        yield "".join(self._dialect.begin())
                    case Delta():
                        if text := "".join(self._dialect.piece(happened)):
                            yield text
                began = True
            yield "".join(self._dialect.end(finished(self._answer, client)))
        except SlowReaderError:
            raise
        except MonolaneError as error:
            if not began:
                raise
            self._failure = error
            yield "".join(self._dialect.failure(failure_of(error)))


async def paced(answer: Answer) -> AsyncIterator[Event | None]:
    """An answer's events with a pause after each piece, so that the next carries more; None after a long silence."""
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
            for _ in range(round(PAUSE_S / LOOK_S)):
                if answer.over:
                    break
                await asyncio.sleep(LOOK_S)


@dataclass
class Client:
    gone: bool = False


def finished(answer: Answer, client: Client) -> Completion:
    """The result of an answer that came to its own end."""
    if client.gone:
        raise ClientLeftError("The client went away.")
    if answer.result.finish_reason == "abort":
        raise NotReadyError("The server was stopped in the middle of the answer.", "Ask again when it is back.")
    return answer.result


@asynccontextmanager
async def leaving(receive: Receive, answer: Answer) -> AsyncIterator[Client]:
    """Cancels the answer when its client goes, and when the block is left, whatever the reason."""

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


def told(service: Service, scope: Scope, answer: Answer, error: Exception | None = None) -> None:
    """Keep what is known about a request that is over, for the log and the metrics."""
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
        service.metrics.observe(result)
