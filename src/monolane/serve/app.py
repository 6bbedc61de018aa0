"""The server's routes: health, models, chat completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

import monolane
from monolane.engine.llm import LLM
from monolane.engine.stream import Stream
from monolane.errors import MonolaneError
from monolane.serve.failures import HttpError, add_failure_handlers, failure_of
from monolane.serve.limit import BodyLimit
from monolane.serve.protocol import ChatRequest, Reply, event
from monolane.serve.stream import EventStream, deltas, whole


class Service:
    """The model that is served, under the name ``model_id``; ``llm`` is None until it has loaded."""

    def __init__(self, model_id: str, llm: LLM | None = None) -> None:
        self.model_id = model_id
        self.llm = llm
        self.created = int(time.time())  # seconds since 1970
        self.worker = ThreadPoolExecutor(1, "monolane-answers")  # one thread: first come, first served

    def ready(self) -> LLM:
        if self.llm is None:
            raise HttpError(503, "The model is still loading: try again in a moment.", "service_unavailable")
        return self.llm

    def close(self) -> None:
        self.worker.shutdown(wait=False, cancel_futures=True)
        if self.llm is not None:
            self.llm.close()


def create_app(service: Service) -> FastAPI:
    app = FastAPI(title="Monolane", version=monolane.__version__)
    app.add_middleware(BodyLimit)
    add_failure_handlers(app)

    @app.get("/health")
    async def health() -> JSONResponse:
        loaded = service.llm is not None
        return JSONResponse({"status": "ok" if loaded else "loading"}, 200 if loaded else 503)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": service.model_id, "object": "model", "created": service.created, "owned_by": "monolane"}
        return {"object": "list", "data": [card | {"max_model_len": service.ready().target.context}]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        llm = service.ready()
        if body.model not in (None, service.model_id):
            message = f"This server has no model {body.model!r}; it serves {service.model_id!r}."
            raise HttpError(404, message, param="model", code="model_not_found")
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        # In a thread: tokenizing a long prompt must not hold up the answers that are being sent.
        answer = await asyncio.to_thread(llm.chat, messages, body.params(), stream=True)
        reply = Reply(service.model_id, llm.tokenizer)
        if body.stream:
            return EventStream(_events(service, answer, reply, body.stream_options.include_usage), answer)
        return JSONResponse(reply.whole(await whole(answer, service.worker, request)))

    return app


async def _events(service: Service, answer: Stream, reply: Reply, include_usage: bool) -> AsyncIterator[str]:
    yield event(reply.first())
    try:
        async for delta in deltas(answer, service.worker):
            if delta.text or delta.logprobs:
                yield event(reply.piece(delta))
        yield event(reply.last(answer.result))
        if include_usage:
            yield event(reply.usage(answer.result))
    except MonolaneError as error:  # too late for a status: the client learns of it within the stream
        yield event(failure_of(error).body())
    yield "data: [DONE]\n\n"
