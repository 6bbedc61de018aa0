"""From the thread in which an answer is made to the event loop that sends it, and the news of a lost client back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from itertools import chain

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from monolane.engine.result import Completion, Delta
from monolane.engine.stream import Stream


async def deltas(answer: Stream, worker: Executor) -> AsyncIterator[Delta]:
    """Have the worker make an answer; yield what is ready, in as few pieces as possible.

    The queue between the two is never longer than the answer, which the context bounds. So the target does not wait
    for a slow reader, and the next request does not either.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Delta | None] = asyncio.Queue()

    def work() -> None:
        try:
            for delta in answer:
                loop.call_soon_threadsafe(queue.put_nowait, delta)
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, None)

    working = loop.run_in_executor(worker, work)
    try:
        more = True
        while more:
            ready = [await queue.get()]
            while not queue.empty():
                ready.append(queue.get_nowait())
            more = ready[-1] is not None
            if pieces := [delta for delta in ready if delta is not None]:
                yield join(pieces)
        await working  # raises what went wrong in the worker
    finally:
        answer.abort()


def join(pieces: Sequence[Delta]) -> Delta:
    """Several pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Delta(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
    )


async def whole(answer: Stream, worker: Executor, request: Request) -> Completion:
    """The finished answer; given up as soon as the client is gone."""
    gone = asyncio.create_task(disconnect(request))
    gone.add_done_callback(lambda _: answer.abort())
    try:
        async for _ in deltas(answer, worker):
            pass
    finally:
        gone.cancel()
    return answer.result


async def disconnect(request: Request) -> None:
    """Return when the client has gone. The body of the request has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events of an answer, which ends with the response, however that ends."""

    def __init__(self, events: AsyncIterator[str], answer: Stream) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.abort()
