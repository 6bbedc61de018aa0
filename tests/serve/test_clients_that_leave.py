"""Clients that disconnect, do not read, or are many; none may slow the others down."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from running import ENDLESS, Running, running, until

from monolane.serve import answering, connections, limits

CHAT = "/v1/chat/completions"
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def endless() -> Iterator[Running]:
    """Answers that take minutes: whoever is answered next, an earlier answer was given up."""
    with running(answer="a", tokens_per_second=100, context=ENDLESS) as server:
        yield server


def tokens_came(server: Running, count: int) -> None:
    until(lambda: len(server.answers[-1]._transcript.tokens) >= count)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_client_that_leaves_at_token_0_1_or_k_frees_its_place(endless: Running, stream: bool, count: int) -> None:
    asked = len(endless.answers)
    connection = endless.send(CHAT, messages=HI, stream=stream)
    until(lambda: len(endless.answers) > asked)
    tokens_came(endless, count)
    answer = endless.answers[-1]
    connection.close()
    until(lambda: answer.over)
    assert answer.result.finish_reason == "abort"
    assert endless.post(CHAT, {"messages": HI, "max_tokens": 2})[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_is_never_run(endless: Running, stream: bool) -> None:
    first = endless.send(CHAT, messages=HI, stream=True)
    until(lambda: endless.engine.running)
    second = endless.send(CHAT, messages=HI, stream=stream)
    until(lambda: endless.engine.queue_depth == 1)
    waiting = endless.answers[-1]
    second.close()
    until(lambda: endless.engine.queue_depth == 0)
    assert waiting.result.token_ids == ()
    first.close()
    until(lambda: not endless.engine.running)


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    with running(answer="a" * 500, context=40_000, tokens_per_second=200_000) as server:
        lazy = server.send(CHAT, messages=HI, stream=True, logprobs=True, top_logprobs=20, max_tokens=20_000)
        until(lambda: bool(server.answers) and server.answers[-1].over)
        assert server.answers[-1].failed  # more was unread than is kept for anybody
        assert server.post(CHAT, {"messages": HI, "max_tokens": 2})[0] == 200
        lazy.close()


def test_a_reader_of_one_byte_per_second_holds_up_nobody(endless: Running) -> None:
    connection = endless.send(CHAT, messages=HI, stream=True, max_tokens=100)
    slow = endless.answers
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(1.0) and connection.recv(1):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until(lambda: endless.engine.running)
        assert endless.post(CHAT, {"messages": HI, "max_tokens": 2})[0] == 200  # the hundred tokens are made by then
        assert slow[-2].result.finish_reason == "length"
    finally:
        stop.set()
        reader.join(30)
        connection.close()


def test_200_clients_at_once_are_answered_or_told_to_come_back() -> None:
    with running(queue_limit=64) as server:
        statuses: list[tuple[int, str | None]] = []
        start = threading.Barrier(200)

        def ask() -> None:
            start.wait(30)
            with server.send(CHAT, messages=HI, stream=True) as connection:
                text = b""
                while b"\r\n\r\n" not in text or (b" 200 " in text and b"[DONE]" not in text):
                    if not (more := connection.recv(1 << 16)):
                        break
                    text += more
            status = int(text.split(b" ", 2)[1])
            if status == 200:
                assert b"[DONE]" in text
            statuses.append((status, "retry" if b"retry-after: " in text.lower() else None))

        threads = [threading.Thread(target=ask) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(statuses) == 200
        assert set(statuses) <= {(200, None), (503, "retry")}
        assert statuses.count((200, None)) >= 65
        assert server.post(CHAT, {"messages": HI})[0] == 200


def test_a_full_queue_is_told_with_the_time_to_come_back() -> None:
    with running(answer="a", tokens_per_second=100, context=ENDLESS, queue_limit=1) as server:
        held = [server.send(CHAT, messages=HI, stream=True)]
        until(lambda: server.engine.running)
        held.append(server.send(CHAT, messages=HI, stream=True))
        until(lambda: server.engine.queue_depth == 1)
        for path, body in ((CHAT, {"messages": HI}), ("/v1/completions", {"prompt": "Hi"})):
            status, answer = server.post(path, body)
            assert status == 503
            assert answer["error"]["type"] == "service_unavailable"
        for connection in held:
            connection.close()


def test_connections_are_bounded() -> None:
    with running(max_connections=3) as server:
        held = [server.connect() for _ in range(3)]
        until(lambda: b"503" in _first_line(server))
        held.pop().close()
        until(lambda: _status(server) == 200)
        for connection in held:
            connection.close()


def _first_line(server: Running) -> bytes:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(1 << 16).split(b"\r\n")[0]


def _status(server: Running) -> int:
    try:
        return server.get("/health")[0]
    except OSError:
        return 0


def test_headers_are_bounded(endless: Running) -> None:
    with endless.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (40 << 10) + b"\r\n\r\n")
        assert b" 431 " in connection.recv(1 << 16)


def test_headers_that_never_end_are_given_up(endless: Running) -> None:
    with endless.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        with suppress(OSError):
            for _ in range(32):
                connection.sendall(b"x" * (64 << 10))
        with suppress(ConnectionResetError):
            assert b" 400 " in connection.recv(1 << 16)


def test_a_body_that_never_ends_is_given_up(endless: Running) -> None:
    """Its header says little; what comes is what counts."""
    with endless.connect() as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
        answer = b""
        connection.settimeout(30)
        for _ in range(8):
            try:
                connection.sendall(chunk)
            except OSError:
                break
        with suppress(ConnectionResetError):
            while more := connection.recv(1 << 16):  # it also hangs up
                answer += more
        assert not answer or b" 413 " in answer


def test_the_bodies_of_all_requests_together_are_bounded(endless: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 1000)
    with endless.send(CHAT, messages=HI, stream=True, user="x" * 800):
        until(lambda: endless.engine.running)
        status, body = endless.post(CHAT, {"messages": HI, "max_tokens": 1, "user": "x" * 200})
        assert (status, body["error"]["type"]) == (503, "service_unavailable")
    # The engine ends first; the body is let go when the server has given up the response.
    until(lambda: endless.post(CHAT, {"messages": HI, "max_tokens": 1, "user": "x" * 200})[0] == 200)


def test_a_body_that_comes_too_slowly_is_given_up(endless: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.2)
    with endless.connect() as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
        assert b" 408 " in connection.recv(1 << 16)


@pytest.mark.parametrize(("earlier", "sent"), [(0, b""), (0, b"GET /hea"), (1, b"GET /hea")])
def test_headers_that_come_too_slowly_are_given_up(
    endless: Running, monkeypatch: pytest.MonkeyPatch, earlier: int, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.2)
    with endless.connect() as connection:
        for _ in range(earlier):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in connection.recv(1 << 16)
        connection.sendall(sent)
        assert connection.recv(1 << 16) == b""


def test_a_client_that_reads_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "SEND_S", 0.3)
    with running(answer="a", context=20_000, tokens_per_second=20_000) as server:
        lazy = server.send(CHAT, messages=HI, stream=True, logprobs=True, top_logprobs=20, max_tokens=8000)
        until(lambda: bool(server.answers) and server.answers[-1].over)
        threading.Event().wait(1.0)
        text = b""
        with suppress(ConnectionResetError):
            while more := lazy.recv(1 << 20):
                text += more
        assert b"[DONE]" not in text
        lazy.close()


def test_pieces_carry_as_many_tokens_as_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pause that lasts until the answer is over, the second piece carries all that was made meanwhile."""
    monkeypatch.setattr(answering, "PAUSE_S", 60.0)
    with running(answer="a", context=8192, tokens_per_second=5000) as server:
        body = json.dumps({"messages": HI, "stream": True, "max_tokens": 2000}).encode()
        with server.open(CHAT, body) as response:
            events = response.read().decode().split("\n\n")
        texts = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events[:-2]]
        first, rest = filter(None, texts)
        assert 0 < len(first) < len(rest)
        assert len(first) + len(rest) == 2000
