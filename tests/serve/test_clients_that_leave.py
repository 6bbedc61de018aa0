from __future__ import annotations

import json
import socket
import threading
from urllib.parse import urlsplit

import pytest
from running import Running, post, running, until

from monolane.target.base import Finish

ENDLESS = 60_000  # tokens of context: at the fake's pace, minutes


def ask(server: Running, **fields: object) -> socket.socket:
    """Send a chat request, and leave the answer unread."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_run(stream: bool) -> None:
    with running("a", context=ENDLESS) as server:
        server.target.pace_s = 0.01
        connection = ask(server, stream=stream)
        assert server.target.first_token.wait(20)
        connection.close()
        until(lambda: server.target.running is not None and server.target.running.finish is Finish.ABORT)
        server.target.pace_s = 0.0
        assert post(server, b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}')[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_is_never_run(stream: bool) -> None:
    with running("a", context=ENDLESS) as server:
        server.target.pace_s = 0.01
        first = ask(server, stream=True)
        assert server.target.first_token.wait(20)
        second = ask(server, stream=stream, seed=2)
        until(lambda: server.waiting() == 1)
        second.close()
        third = ask(server, seed=3, max_tokens=1)
        until(lambda: server.waiting() == 2)
        threading.Event().wait(0.05)  # the news of the lost client travels through the event loop
        first.close()
        assert third.recv(100).startswith(b"HTTP/1.1 200")
        assert [request.sampling.seed for request in server.target.requests[1:]] == [3]


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    with running("a" * 500 + "<eos>", context=20_000) as server:
        lazy = ask(server, stream=True, ignore_eos=True, logprobs=True, top_logprobs=20, max_tokens=10_000)
        until(lambda: server.target.running is not None and server.target.running.finish is Finish.LENGTH)
        assert post(server, b'{"messages": [{"role": "user", "content": "Hi"}]}')[0] == 200
        lazy.close()
