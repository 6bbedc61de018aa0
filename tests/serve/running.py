"""A real server on a free port, in a thread, with the fake model behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fake_llm import FakeTarget, fake_llm
from monolane.serve.app import Service
from monolane.serve.run import address, listen, make_server


@dataclass
class Running:
    url: str
    service: Service
    target: FakeTarget

    def waiting(self) -> int:
        """Requests in the queue behind the one that runs."""
        return self.service.worker._work_queue.qsize()


@contextmanager
def running(answer: str = "Hello there.<eos>", loaded: bool = True, **model: int) -> Iterator[Running]:
    llm, target = fake_llm(answer, **model)
    service = Service("fake", llm if loaded else None)
    listener = listen("127.0.0.1", 0)
    server = make_server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Running(address(listener), service, target)
    finally:
        server.should_exit = True
        thread.join(20)
        service.close()
        assert not thread.is_alive()


def open_chat(server: Running, raw: bytes) -> Any:
    url = f"{server.url}/v1/chat/completions"
    return urlopen(Request(url, raw, {"Content-Type": "application/json"}), timeout=20)


def post(server: Running, raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of a chat request, good or bad."""
    try:
        with open_chat(server, raw) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something another thread does; fail rather than hang."""
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")
