"""A real server on a free port, in a thread, with a synthetic engine in a process of its own behind it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import anthropic
import openai

from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.pool import FOREVER
from monolane.serve.run import Server, Settings, address, listen
from monolane.serve.service import Service
from synthetic_engine import synthetic_engine

HELLO = "Hello there.<eos>"
ENDLESS = 60_000  # tokens of context: at 100 tok/s, minutes


@dataclass
class Running:
    url: str
    service: Service
    key: str | None = None
    answers: list[Answer] = field(default_factory=list)  # to everything that was asked
    style_answer: str = ""  # what the engine says, where a test wants to know

    @property
    def engine(self) -> AsyncEngine:
        return self.service.first.engine

    def ready(self) -> None:
        until(lambda: self.engine.state.status == "ready")

    def get(self, path: str) -> tuple[int, Any]:
        return self.call(path, None)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        return self.call(path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def call(self, path: str, raw: bytes | None, **headers: str) -> tuple[int, Any]:
        """Status and body of a request, good or bad; JSON where it is JSON."""
        try:
            with self.open(path, raw, **headers) as response:
                return response.status, _body(response)
        except HTTPError as error:
            with error:
                return error.code, _body(error)

    def open(self, path: str, raw: bytes | None, **headers: str) -> Any:
        keyed = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        typed = {"Content-Type": "application/json"} if raw is not None else {}
        request = Request(self.url + path, raw, typed | keyed | headers)
        return urlopen(request, timeout=30)

    def detokenized(self, tokens: list[int]) -> str:
        status, body = self.post("/detokenize", {"tokens": tokens})
        assert status == 200
        return str(body["prompt"])

    def connect(self) -> socket.socket:
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname, place.port), timeout=30)

    def send(self, path: str, **fields: Any) -> socket.socket:
        """Send a request, and leave the answer unread."""
        body = json.dumps(fields).encode()
        connection = self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        return connection


def _body(response: Any) -> Any:
    raw = response.read()
    return json.loads(raw) if "json" in response.headers.get("Content-Type", "") else raw.decode()


@contextmanager
def running(
    *,
    wait: bool = True,
    api_key: str | None = None,
    only_local: bool = True,
    allow_origins: tuple[str, ...] = (),
    max_connections: int = 512,
    ceiling: float | None = None,
    engine: AsyncEngine | None = None,
    name: str = "fake",
    aliases: tuple[str, ...] = (),
    others: dict[str, AsyncEngine] | None = None,
    keep_alive_s: float = FOREVER,
    **behaviour: Any,
) -> Iterator[Running]:
    """``behaviour`` is the synthetic engine's. ``others``: further models, by their names."""
    behaviour = {"answer": HELLO, "context": 256} | behaviour
    engines = {name: engine or synthetic_engine(**behaviour)} | (others or {})
    service = Service(engines, lambda: ceiling, {name: aliases}, keep_alive_s)
    listener = listen("127.0.0.1", 0)
    settings = Settings(api_key=api_key, allow_origins=allow_origins, max_connections=max_connections)
    server = Server(service, settings, lambda: None, only_local)
    made = Running(address(listener), service, api_key)
    _remember_answers(made)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        if wait:
            made.ready()
        yield made
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def _remember_answers(server: Running) -> None:
    submit = server.engine.submit

    def remembered(*asked: Any, **more: Any) -> Answer:
        answer = submit(*asked, **more)
        server.answers.append(answer)
        return answer

    server.engine.submit = remembered  # type: ignore[method-assign]


def openai_client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key or "none", max_retries=0, timeout=30)


def anthropic_client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=server.key or "none", max_retries=0, timeout=30)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something another thread does; fail rather than hang."""
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")
