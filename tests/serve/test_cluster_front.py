"""The front of several replicas, without Ray: what it asks for again, and what clients see of a lost replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message

from monolane.cluster.calls import ACCEPTED, NOTES, Call, ReplicaLostError
from monolane.cluster.front import Front, create_front
from monolane.errors import NotReadyError

CHAT = "/v1/chat/completions"
Script = Callable[[Call], AsyncGenerator[Sequence[Message]]]


def start(status: int = 200) -> Message:
    """Of a response that is sent as a whole."""
    return {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"1")]}


def body(text: str, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


STREAM: Message = {"type": "http.response.start", "status": 200, "headers": []}
ROLE, TOKEN, END = body("data: role\n\n", True), body("data: token\n\n", True), body("data: [DONE]\n\n")


class Lost:
    """In a script: here the replica dies."""


def script(*messages: Message | type[Lost], **notes: Any) -> Script:
    async def play(call: Call) -> AsyncGenerator[Sequence[Message]]:
        for message in messages[:-1]:
            yield [_alive(message)]
        yield [_alive(messages[-1]), {"type": NOTES, "notes": notes or {"tokens": 7}}]

    return play


def _alive(message: Message | type[Lost]) -> Message:
    if isinstance(message, type):
        raise ReplicaLostError("The replica that answered was lost.", "Ask again.")
    return message


@dataclass
class Scripted:
    """Replicas that answer by scripts, the first before the second."""

    scripts: Sequence[Script]
    calls: list[Call] = field(default_factory=list)

    async def answer(self, call: Call) -> AsyncGenerator[Sequence[Message]]:
        self.calls.append(call)
        for number, play in enumerate(self.scripts):
            if str(number) not in call.tried:
                yield [{"type": ACCEPTED, "replica": str(number)}]
                async for piece in play(call):
                    yield piece
                return
        raise NotReadyError("No replica is ready.", "Ask again in a moment.")

    async def states(self) -> list[dict[str, Any]]:
        return [{"status": "ready" if self.scripts else "restarting"}]

    async def metrics(self) -> dict[str, bytes]:
        page = b'# HELP vllm:x About it.\n# TYPE vllm:x counter\nvllm:x_total{model_name="fake"} 3.0\n'
        return {str(number): page for number in range(len(self.scripts))}


@dataclass
class Got:
    status: int
    text: str
    complete: bool

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.text)["error"]  # type: ignore[no-any-return]


async def ask(
    front: Front,
    path: str = CHAT,
    asked: Any = None,
    leaves: asyncio.Event | None = None,
    headers: dict[str, str] | None = None,
    **options: Any,
) -> Got:
    """Send a request to the front as a server would, and read the response."""
    raw = b"" if asked is None else json.dumps(asked).encode()
    inbox: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]
    got = Got(0, "", False)
    leaves = leaves or asyncio.Event()

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert got.status == 0, "a response starts once"
            got.status = message["status"]
            return
        got.text += message.get("body", b"").decode()
        got.complete = not message.get("more_body", False)
        if got.complete:
            leaves.set()  # as servers do after the last byte

    sent = {"content-type": "application/json"} | (headers or {})
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if asked is None else "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    await create_front(front, **options)(scope, receive, send)
    return got


def answered(*scripts: Script, path: str = CHAT, **more: Any) -> tuple[Got, Scripted, Front]:
    replicas = Scripted(scripts)
    front = Front(replicas)
    return asyncio.run(ask(front, path, {"messages": []}, **more)), replicas, front


WELL = script(STREAM, ROLE, TOKEN, END)


@pytest.mark.parametrize(
    "first",
    [
        script(Lost),
        script(STREAM, ROLE, Lost),
        script(STREAM, body(": queue 1\n\n", True), ROLE, Lost),
        script(start(503), body("{}")),
        script(start(500), body("{}")),
        script(STREAM, ROLE, body("data: error\n\n"), error="The engine failed."),
    ],
    ids=["at once", "before the first token", "in the queue", "full", "engine failed", "engine failed later"],
)
def test_a_stream_without_a_token_is_answered_by_another_replica(first: Script) -> None:
    got, replicas, front = answered(first, WELL)
    assert (got.status, got.complete) == (200, True)
    assert got.text.removeprefix(": queue 1\n\n") == "data: role\n\ndata: token\n\ndata: [DONE]\n\n"
    assert [call.tried for call in replicas.calls] == [(), ("0",)]
    assert front.retried == 1


def test_an_answer_that_is_sent_as_a_whole_is_asked_for_again_until_its_end() -> None:
    got, _, _ = answered(script(start(), body('{"te', True), Lost), script(start(), body('{"text": 1}')))
    assert (got.status, got.text, got.complete) == (200, '{"text": 1}', True)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (CHAT, 'data: {"error":{"message":"The replica'),
        ("/v1/messages", 'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/v1/responses", 'event: error\ndata: {"type":"error","code":"engine_failed"'),
        ("/api/chat", '{"error": "The replica'),
    ],
)
def test_a_stream_with_a_token_ends_with_an_error_of_its_api(path: str, told: str) -> None:
    got, replicas, _ = answered(script(STREAM, ROLE, TOKEN, Lost), WELL, path=path)
    assert got.text.startswith("data: role\n\ndata: token\n\n" + told)
    assert "was lost" in got.text
    assert got.complete
    assert len(replicas.calls) == 1


def test_what_no_replica_can_answer_ends_with_the_last_ones_response() -> None:
    full = script(start(503), body('{"error": {"message": "full"}}'))
    got, replicas, _ = answered(full, full, full, WELL)
    assert (got.status, got.error["message"]) == (503, "full")
    assert len(replicas.calls) == 3
    got, _, _ = answered(script(Lost), script(Lost), script(Lost))
    assert (got.status, got.error["code"]) == (500, "engine_failed")
    got, _, _ = answered()
    assert (got.status, got.error["message"]) == (503, "No replica is ready. Ask again in a moment.")


def test_a_wrong_request_is_not_tried_twice() -> None:
    got, replicas, _ = answered(script(start(400), body("{}"), error="It is wrong."), WELL)
    assert (got.status, len(replicas.calls)) == (400, 1)


def test_keys_and_limits_are_the_fronts_and_no_replica_sees_a_key() -> None:
    replicas = Scripted([WELL])
    front = Front(replicas)
    assert asyncio.run(ask(front, CHAT, {}, api_key="secret")).status == 401
    assert asyncio.run(ask(front, CHAT, {}, headers={"host": "evil.example"})).status == 403
    assert asyncio.run(ask(front, CHAT, {}, headers={"content-length": str(5 << 20)})).status == 413
    assert replicas.calls == []
    keyed = {"authorization": "Bearer secret", "x-api-key": "secret"}
    assert asyncio.run(ask(front, CHAT, {}, api_key="secret", headers=keyed)).status == 200
    assert dict(replicas.calls[0].scope["headers"]) == {b"content-type": b"application/json"}


def test_when_the_client_leaves_its_request_is_cancelled() -> None:
    ended = []

    async def endless(call: Call) -> AsyncGenerator[Sequence[Message]]:
        try:
            yield [STREAM]
            while True:
                yield [TOKEN]
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    async def leave() -> Got:
        leaves = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, leaves.set)
        return await ask(Front(Scripted([endless])), CHAT, {}, leaves=leaves)

    got = asyncio.run(leave())
    assert got.text.startswith("data: token")
    assert not got.complete
    assert ended == [True]


def test_told_to_stop_it_gives_answers_time_and_then_tells_their_clients() -> None:
    async def slow(call: Call) -> AsyncGenerator[Sequence[Message]]:
        yield [STREAM, ROLE, TOKEN]
        await asyncio.sleep(60)

    async def soon(call: Call) -> AsyncGenerator[Sequence[Message]]:
        await asyncio.sleep(0.05)
        async for piece in WELL(call):
            yield piece

    async def stop(play: Script) -> tuple[Got, Got]:
        front = Front(Scripted([play]))
        asked = asyncio.create_task(ask(front, CHAT, {}))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(front.close(0.2))
        await asyncio.sleep(0.01)
        late = await ask(front, CHAT, {})
        await closing
        return await asked, late

    got, late = asyncio.run(stop(soon))
    assert got.text.endswith("[DONE]\n\n")
    assert late.status == 503
    got, _ = asyncio.run(stop(slow))
    assert "stopped in the middle" in got.text
    assert got.complete


def test_health_and_metrics_are_those_of_all_replicas() -> None:
    two, none = Front(Scripted([WELL, WELL])), Front(Scripted([]))
    assert asyncio.run(ask(two, "/health")).text == '{"status":"ok"}'
    assert asyncio.run(ask(none, "/health")).status == 503
    lines = asyncio.run(ask(two, "/metrics")).text.splitlines()
    assert lines.count("# TYPE vllm:x_total counter") == 1
    assert 'vllm:x_total{model_name="fake",replica="0"} 3.0' in lines
    assert 'vllm:x_total{model_name="fake",replica="1"} 3.0' in lines
    assert "monolane:replicas 2.0" in lines
    assert "monolane:requests_retried_total 0.0" in lines


def test_the_log_has_what_the_replica_noted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolane.serve.request_log.EVERYTHING.propagate", True)
    with caplog.at_level("INFO", logger="monolane.serve"):
        answered(WELL)
    assert "status=200" in caplog.text
    assert "replica=0 tokens=7" in caplog.text
    assert "error" not in caplog.text
