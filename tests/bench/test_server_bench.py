"""The benchmark of servers: tokens and times are right, whatever the server's behaviour."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_server import ANSWER, Habits, fake_server

from monolane.bench.measure import run, server_client, timing
from monolane.bench.measure.server_client import Client
from monolane.bench.report import show
from monolane.errors import MonolaneError, UnavailableError, UsageError
from monolane.serve.run import Server, Settings, address, listen
from monolane.serve.service import Service
from synthetic_engine import synthetic_engine


def heard(_: str) -> None: ...


@pytest.fixture
def habits(monkeypatch: pytest.MonkeyPatch) -> Habits:
    made = Habits()
    for module in (timing, server_client):
        monkeypatch.setattr(module, "perf_counter", made.clock)
    return made


def measured(url: str, folder: Path, **options: Any) -> dict[str, Any]:
    asked = run.Options(server=url, **({"tokens": 101, "rounds": 2} | options), out=folder)
    run.run(asked, None, heard)  # type: ignore[arg-type]  # nothing is loaded
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("pieces", [(1,), (7,), (1, 30, 2), (1000,)])
def test_coalesced_tokens_are_counted_by_usage(habits: Habits, tmp_path: Path, pieces: tuple[int, ...]) -> None:
    habits.pieces = pieces
    with fake_server(habits) as url:
        result = measured(url, tmp_path)
    assert result["us_per_token"] == pytest.approx(2000)
    assert result["tokens_per_second"] == pytest.approx(500)
    assert result["tokens"] == 101
    assert result["model"] == "fake"
    assert result["throughput"]["tokens_per_second"] == pytest.approx(101 / (0.25 + 101 * 0.002))
    assert result["accuracy"]["verdict"] == "not judged"
    assert result["accuracy"]["consistent"] is True
    assert {"machine", "versions", "command", "method"} <= result.keys()
    assert "500.0 tok/s" in show.text([result])


def test_the_first_token_is_that_of_a_prompt_it_has_not_seen(habits: Habits, tmp_path: Path) -> None:
    with fake_server(habits) as url:
        result = measured(url, tmp_path)
    assert result["first_token_ms"]["128"]["host"] == pytest.approx(252)
    assert result["prompt_tokens"] == 128
    prompts = [body["prompt"] for body in habits.bodies]
    # Each round: one that is new and then asked twice more, and a queue of two; before them, two to count words.
    assert len(prompts) == 2 + 2 * (3 + 2)
    assert len({prompt.split()[0] for prompt in prompts}) == 2 + 2 * (1 + 2)


def test_an_answer_that_begins_otherwise_is_told(habits: Habits, tmp_path: Path) -> None:
    habits.answers = iter(("xyz", ANSWER) * 100)
    with fake_server(habits) as url:
        result = measured(url, tmp_path)
    assert result["accuracy"]["consistent"] is False
    assert "it does NOT" in show.text([result])


def test_an_answer_that_ends_early_is_divided_by_the_tokens_it_has(habits: Habits, tmp_path: Path) -> None:
    habits.refuses, habits.stops_after, habits.pieces = ("ignore_eos", "min_tokens"), 41, (8,)
    with fake_server(habits) as url:
        result = measured(url, tmp_path)
    assert result["tokens"] == 41
    assert result["us_per_token"] == pytest.approx(2000)
    assert "ends where the model ends" in result["device"]


@pytest.mark.parametrize("template", [0, 40])
def test_contexts_are_filled_by_prompts_of_that_length(habits: Habits, tmp_path: Path, template: int) -> None:
    habits.template = template
    with fake_server(habits) as url:
        result = measured(url, tmp_path, contexts=(0, 1024))
    assert [point["context"] for point in result["points"]] == [1 + template, 1024]
    assert [point["us_per_token"] for point in result["points"]] == [pytest.approx(2000)] * 2


@pytest.mark.parametrize(
    ("refuses", "routes", "way"),
    [
        ((), ("/v1/completions",), "/v1/completions with ignore_eos and min_tokens"),
        (("min_tokens",), ("/v1/completions",), "/v1/completions with ignore_eos"),
        ((), ("/v1/chat/completions",), "/v1/chat/completions with ignore_eos and min_tokens"),
        (("min_tokens", "ignore_eos"), ("/v1/chat/completions",), "/v1/chat/completions, ends where the model ends"),
    ],
)
def test_the_best_way_that_a_server_takes_is_found(
    habits: Habits, refuses: tuple[str, ...], routes: tuple[str, ...], way: str
) -> None:
    habits.refuses, habits.routes = refuses, routes
    with fake_server(habits) as url:
        client = Client(f"{url}/v1/")
        assert client.ask("Hello", 5).text == ANSWER[:5]
        asked = len(habits.bodies)
        client.ask("Hello", 5)
        client.close()
    assert client.way == way
    assert len(habits.bodies) == asked + 1  # found once


def test_token_ids_and_keys_are_passed_on(habits: Habits) -> None:
    habits.key = "k"
    with fake_server(habits) as url:
        client = Client(url, "k", "another")
        assert client.ask([5, 6, 7], 4).prompt_tokens == 3
        client.close()
        assert habits.bodies[-1]["prompt"] == [5, 6, 7]
        assert habits.bodies[-1]["model"] == "another"
        with pytest.raises(UsageError, match="another API key"):
            Client(url, "wrong").ask("Hello", 1)


@pytest.mark.parametrize(
    ("habit", "error", "says"),
    [
        ({"usage": False}, UsageError, "how many tokens"),
        ({"routes": ()}, UsageError, "no such route"),
        ({"breaks": 'data: {"error": {"message": "it fell over"}}\n\n'}, UnavailableError, "it fell over"),
        ({"breaks": "data: {nonsense\n\n"}, UnavailableError, "broke off"),
        ({"breaks": "data: 3\n\n"}, UnavailableError, "failed while it answered"),
        ({"stops_after": 1, "refuses": ("ignore_eos", "min_tokens")}, UsageError, "no difference to divide by"),
        ({"models": {"data": []}}, UsageError, "does not list its models"),
        ({"models": "nonsense"}, UsageError, "does not list its models"),
    ],
)
def test_what_cannot_be_measured_is_an_error_with_a_reason(
    habits: Habits, tmp_path: Path, habit: dict[str, Any], error: type[MonolaneError], says: str
) -> None:
    for name, value in habit.items():
        setattr(habits, name, value)
    with fake_server(habits) as url, pytest.raises(error) as caught:
        measured(url, tmp_path)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match=r"cannot be reached[\s\S]*--server"):
        Client(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "http://host:port", "http://[::1", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        Client(url)


def test_our_own_server(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)
    ready = threading.Event()
    service = Service({"synthetic": synthetic_engine(tokens_per_second=2000)})
    server = Server(service, Settings(), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(30)
        result = measured(address(listener), tmp_path, tokens=200, rounds=1)
    finally:
        server.should_exit = True
        thread.join(30)
    assert result["model"] == "synthetic"
    assert result["device"].endswith("/v1/completions with ignore_eos and min_tokens")
    assert result["tokens"] == 200
    assert result["accuracy"]["consistent"] is True
    assert result["us_per_token"] > 0
    assert result["rounds"][0]["tokens_per_piece"] >= 1
