"""A server with the playground and a scripted model behind it, at a speed that is set beforehand."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from monolane.model.generation_config import SuggestedSampling
from monolane.serve.playground_routes import Machine, add_playground

MACHINE = Machine("scripted", "a synthetic engine", 890_000_000, 4.6e12, 8192, True, SuggestedSampling())
TICK_S = 0.002  # chunks carry what has become ready since the last


@dataclass
class Script:
    """What the server says and how fast; tests change it while it runs."""

    answer: str = "Hello there."
    answers: dict[str, str] = field(default_factory=dict)  # by a word of the prompt
    speed: float = 2000.0  # tokens per second
    machine: Machine = MACHINE
    models: list[str] = field(default_factory=lambda: ["scripted"])
    key: str | None = None
    loading: dict[str, Any] | None = None  # the body of /health while there is no model
    ahead: int = 0  # requests in the queue before this one; the answer begins when there are none
    hold_at: int | None = None  # tokens after which an answer waits, until this is None again
    refusal: tuple[int, str] | tuple[int, str, str] | None = None  # status, message, code, instead of an answer
    finish: str = "stop"
    breaks_after: int | None = None  # tokens until the stream ends with an error
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of everything that was asked for
    left: int = 0  # clients that went away in the middle

    def answer_to(self, prompt: str) -> str:
        return next((text for word, text in self.answers.items() if word in prompt), self.answer)


def tokens_of(text: str) -> list[str]:
    return re.findall(r"\s*\w{1,7}|\s*[^\w\s]{1,2}|\s+", text)


@contextmanager
def playground(script: Script) -> Iterator[str]:
    """Run it on a free port; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_app(script), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def _app(script: Script) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        path = request.url.path
        script.paths.append(path)
        is_public = path in ("/", "/health") or path.startswith("/playground/")
        if script.key and not is_public and request.headers.get("authorization") != f"Bearer {script.key}":
            return _error(401, "The API key is missing or wrong.")
        response: Response = await call_next(request)
        return response

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse(script.loading or {"status": "ok"}, 503 if script.loading else 200)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in script.models]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        body = await request.json()
        script.requests.append(body)
        if script.refusal:
            return _error(*script.refusal)
        return StreamingResponse(_stream(script, body), media_type="text/event-stream")

    async def machine(_name: str | None, _scope: Any) -> Machine:
        return script.machine

    add_playground(app, machine)
    return app


def _error(status: int, message: str, code: str | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "error", "param": None, "code": code}}, status)


async def _stream(script: Script, body: dict[str, Any]) -> AsyncIterator[str]:
    told = 0
    while script.ahead:
        if script.ahead != told:
            told = script.ahead
            yield f": queue {told}\n\n"
        await asyncio.sleep(TICK_S)
    tokens = tokens_of(script.answer_to(body["messages"][-1]["content"]))
    yield _chunk({"role": "assistant", "content": ""})
    start, sent, pace = time.perf_counter(), 0, 1 / script.speed
    try:
        while sent < len(tokens):
            due = min(len(tokens), int((time.perf_counter() - start) / pace) + 1)
            due = due if script.hold_at is None else min(due, script.hold_at)
            if script.breaks_after is not None and due > script.breaks_after:
                yield (
                    "data: " + json.dumps({"error": {"message": "worker 1 got stuck in stage 7. Try again."}}) + "\n\n"
                )
                return
            if due > sent:
                usage = {"prompt_tokens": 20, "completion_tokens": due}
                yield _chunk({"content": "".join(tokens[sent:due])}, usage=usage)
                sent = due
            await asyncio.sleep(TICK_S)
    except asyncio.CancelledError:
        script.left += 1
        raise
    timings = {
        "prompt_tokens": 20, "cached_tokens": 0, "generated_tokens": len(tokens), "first_token_s": 0.0042,
        "decode_us_per_token": 1e6 * pace, "tokens_per_second": script.speed,
        "bytes_per_token": script.machine.bytes_per_token,
    }  # fmt: skip
    yield _chunk({}, finish=script.finish, timings=timings)
    yield "data: [DONE]\n\n"


def _chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return "data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]} | more) + "\n\n"
