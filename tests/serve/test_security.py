"""Access control and limits: requests without the key, with a foreign host name, and hostile schemas are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from running import Running, anthropic_client, openai_client, running, until

from monolane.errors import UsageError
from monolane.serve import grammar_process, structured_output
from monolane.serve.guard import is_local_name

KEY = "sk-correct-horse"
OPEN = {("GET", "/"), ("GET", "/health")}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with running(api_key=KEY) as server:
        yield server


def routes(server: Running) -> list[tuple[str, str]]:
    """Every route there is, by method and path; the guard knows none of them by name."""
    from monolane.serve.app import create_app

    found = {("GET", "/docs"), ("GET", "/redoc"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/")}
    for path, methods in create_app(server.service).openapi()["paths"].items():
        found |= {(method.upper(), path.replace("{model_id}", "fake")) for method in methods}
    return sorted(found | OPEN)


def status_of(server: Running, method: str, path: str, **headers: str) -> int:
    server_key, server.key = server.key, None
    try:
        return server.call(path, b"{}" if method == "POST" else None, **headers)[0]
    finally:
        server.key = server_key


def test_the_matrix_of_routes_and_keys_all_but_the_page_and_health_want_the_right_one(keyed: Running) -> None:
    everything = routes(keyed)
    assert ("POST", "/v1/messages") in everything
    assert ("GET", "/machine") in everything
    wrong = ["", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer \xff", KEY]
    for method, path in everything:
        is_open = (method, path) in OPEN
        for header in wrong:
            status = status_of(keyed, method, path, Authorization=header)
            assert (status == 401) is not is_open or (method, path) == ("POST", "/"), (method, path, header)
        assert status_of(keyed, method, path, Authorization=f"Bearer {KEY}") != 401
        assert status_of(keyed, method, path, **{"X-Api-Key": KEY}) != 401


@pytest.mark.parametrize("path", ["/playground/main.js", "/playground/preview.html"])
def test_the_files_of_the_page_are_open(keyed: Running, path: str) -> None:
    assert status_of(keyed, "GET", path) == 200


@pytest.mark.parametrize(
    "path", ["/playground/../v1/models", "/playground/%2e%2e/v1/models", "//v1/models", "/v1/models/", "/playground"]
)
def test_there_is_no_way_around(keyed: Running, path: str) -> None:
    assert status_of(keyed, "GET", path) in (401, 404)


def test_the_clients_of_both_makers_show_it(keyed: Running) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    client = openai_client(keyed)
    assert client.chat.completions.create(model="fake", messages=messages).choices[0].message.content
    other = anthropic_client(keyed)
    assert other.messages.create(model="fake", max_tokens=9, messages=messages).content
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(anthropic.AuthenticationError):
        other.with_options(api_key="wrong").messages.create(model="fake", max_tokens=9, messages=messages)


def test_a_local_server_without_a_key_goes_by_local_names_only(server: Running) -> None:
    assert server.call("/v1/models", None, Host="evil.example")[0] == 403
    assert server.call("/", None, Host="evil.example:8000")[0] == 403
    for name in ("localhost:1234", "127.0.0.1", "[::1]:80"):
        assert server.call("/v1/models", None, Host=name)[0] == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("LOCALHOST.", True), ("a.localhost:1", True), ("192.168.1.2:8000", True), ("[::1]", True),
     ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("evil", False), ("", False)],
)  # fmt: skip
def test_local_names(host: str, local: bool) -> None:
    assert is_local_name(host) is local


# --- schemas of strangers ---


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def ask(server: Running, schema: Any) -> tuple[int, str]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, body = server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}
    )
    return status, body["error"]["message"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (deep(100), "deeply"),
        ({"enum": ["x" * 100] * 1000}, "bytes"),
        ({"type": "nonsense"}, "nonsense"),
        ({"$ref": "#/$defs/missing"}, "response_format"),
        ({"$ref": "https://example.com/schema.json"}, "response_format"),
        ({"type": "string", "pattern": "(((("}, "response_format"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "response_format"),
    ],
)
def test_hostile_schemas_and_regexes_are_refused(server: Running, schema: Any, told: str) -> None:
    status, message = ask(server, schema)
    assert status == 400
    assert told in message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^((((a{1,100}){1,100}){1,100}){1,100}){1,100}$"},
        {"type": "string", "pattern": "^(a+)+(b+)+(a|b)*c{1,5000}$"},
        {"type": "array", "minItems": 100_000_000, "items": {"type": "integer"}},
        {"type": "object", "properties": {str(i): {"type": "string", "pattern": ".*a.{50}"} for i in range(300)}},
    ],
)
def test_hostile_schemas_and_regexes_cost_nobody_else_anything(server: Running, schema: Any) -> None:
    """They are refused, or followed; the server answers others meanwhile and afterwards."""
    asking = threading.Thread(target=ask, args=[server, schema])
    asking.start()
    assert server.get("/health")[0] == 200
    asking.join(30)
    assert not asking.is_alive()
    server.ready()
    assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})[0] == 200


def test_what_takes_too_long_is_killed_and_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit itself: a process that is stopped answers nothing."""
    import asyncio
    import os
    import signal

    async def test() -> None:
        made = structured_output.GrammarCompiler()
        try:
            assert "integer" in await made.compile("json_schema", '{"type": "integer"}', "it")
            process = made._process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            monkeypatch.setattr(structured_output, "COMPILE_S", 0.2)
            with pytest.raises(UsageError, match="too much time"):
                await made.compile("json_schema", '{"type": "boolean"}', "it")
            assert process.poll() is not None
            monkeypatch.undo()
            assert "boolean" in await made.compile("json_schema", '{"type": "boolean"}', "it")
        finally:
            made.close()

    asyncio.run(test())
    assert grammar_process.SECONDS > structured_output.COMPILE_S


def test_the_process_that_tries_schemas_ends_with_the_server() -> None:
    with running() as server:
        ask(server, {"type": "integer"})
        process = server.service.grammars._process
        assert process is not None
    until(lambda: process.poll() is not None)


def test_failures_tell_clients_nothing_of_the_inside(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("secret path /home/me")

    monkeypatch.setattr(server.service, "find", fail)
    status, body = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert status == 500
    assert "secret" not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)
