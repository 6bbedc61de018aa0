"""No answer takes longer than the server allows; requests that are refused by their headers alone; the engine's log."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import Any

import pytest
from running import ENDLESS, Running, running, until

from synthetic_engine import synthetic_engine

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
JSON = "Content-Type: application/json\r\n"


def test_no_answer_has_more_tokens_than_allowed() -> None:
    engine = synthetic_engine(answer="a", limits={"max_answer_tokens": 5})
    with running(engine=engine) as server:
        for asked in ({}, {"max_tokens": 100}, {"max_tokens": 5}):
            _, body = server.post(CHAT, {"messages": HI} | asked)
            [choice] = body["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("aaaaa", "length")
        _, body = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        assert body["choices"][0]["text"] == "aa"


def test_an_answer_that_takes_too_long_ends_as_if_it_were_at_its_longest() -> None:
    engine = synthetic_engine(answer="a", tokens_per_second=100, context=ENDLESS, limits={"max_answer_s": 0.2})
    with running(engine=engine) as server:
        status, body = server.post(CHAT, {"messages": HI})
        assert (status, body["choices"][0]["finish_reason"]) == (200, "length")
        assert set(body["choices"][0]["message"]["content"]) == {"a"}
        status, events = server.post(CHAT, {"messages": HI, "stream": True})
        assert status == 200
        assert '"finish_reason":"length"' in events


def raw(server: Running, head: str, body: bytes = b"") -> bytes:
    """What a server answers to these bytes until it closes the connection."""
    with server.connect() as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + body)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    return received


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(server: Running) -> None:
    told = raw(server, JSON + "Content-Length: 5000000000")
    assert told.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in told.lower()


def test_a_request_of_two_lengths_closes_the_connection(server: Running) -> None:
    told = raw(server, JSON + "Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400")
    assert told.count(b"HTTP/1.1") == 1


def test_the_death_of_an_engine_is_a_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with running(answer="a", tokens_per_second=100, context=ENDLESS) as server:
        pid = server.engine.state.core_pid
        assert pid is not None
        with server.open(CHAT, json.dumps({"messages": HI, "stream": True}).encode()) as response:
            os.kill(pid, signal.SIGKILL)
            response.read()
        until(lambda: bool(caplog.records))
    [record] = [record for record in caplog.records if record.name == "monolane.engine"]
    assert record.levelno == logging.WARNING
    assert "killed by SIGKILL" in record.getMessage()
