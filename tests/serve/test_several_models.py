"""A server with several models: the request's ``model`` chooses, and they come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from running import Running, anthropic_client, openai_client, running, until

from monolane import UsageError
from monolane.cli.served_names import named
from monolane.engine.pool import FOREVER
from monolane.engine.queue import WaitingQueue
from monolane.serve.durations import seconds
from synthetic_engine import synthetic_engine
from thorough import thorough

HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    """A server with "fake" and "other", of which the second is not loaded yet."""
    other = synthetic_engine(answer="Other.<eos>", context=128, queue=WaitingQueue(8))
    with running(aliases=("default",), others={"other": other}) as server:
        yield server


def test_a_model_is_loaded_when_it_is_asked_for(pair: Running) -> None:
    client = openai_client(pair)
    before = pair.get("/health")
    assert before[0] == 200
    assert {name: state["status"] for name, state in before[1]["models"].items()} == {
        "fake": "ready",
        "other": "unloaded",
    }
    assert [card["max_model_len"] for card in pair.get("/v1/models")[1]["data"]] == [256, 256, None]
    answers = {
        name: client.chat.completions.create(model=name, messages=HI) for name in ("other", "fake", "default", "other")
    }
    assert {name: answer.choices[0].message.content for name, answer in answers.items()} == {
        "other": "Other.",
        "fake": "Hello there.",
        "default": "Hello there.",
    }
    assert answers["other"].model == "other"
    assert pair.get("/health")[1]["models"]["other"]["status"] == "ready"
    assert [card["max_model_len"] for card in pair.get("/v1/models")[1]["data"]] == [256, 256, 128]


def test_every_route_knows_the_models(pair: Running) -> None:
    message = anthropic_client(pair).messages.create(model="other", max_tokens=9, messages=HI)
    assert message.content[0].text == "Other."  # type: ignore[union-attr]
    assert openai_client(pair).responses.create(model="other", input="Hi").output_text == "Other."
    assert openai_client(pair).completions.create(model="other", prompt="Hi").choices[0].text == "Other."
    assert pair.post("/tokenize", {"model": "other", "prompt": "Hi"})[1]["max_model_len"] == 128
    assert pair.get("/tokenizer_info?model=other")[1]["model_max_length"] == 128
    assert pair.get("/machine?model=other")[1]["model"] == "other"
    assert pair.get("/machine")[1]["model"] == "fake"
    metrics = pair.get("/metrics")[1]
    for name in ("fake", "other"):
        assert f'vllm:request_success_total{{finished_reason="stop",model_name="{name}"}}' in metrics


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_unknown_model_is_told_in_the_words_of_the_route(pair: Running, path: str) -> None:
    status, body = pair.post(path, {"model": "gpt-4o", "max_tokens": 9, "messages": HI})
    assert status == 404
    assert "'fake', 'other'" in body["error"]["message"]
    assert body["error"]["type"] == ("not_found_error" if path == "/v1/messages" else "invalid_request_error")


def test_a_model_that_cannot_be_loaded_leaves_the_others_alone() -> None:
    with running(others={"broken": synthetic_engine(faults="load")}) as server:
        status, body = server.post("/v1/chat/completions", {"model": "broken", "messages": HI})
        assert (status, body["error"]["code"]) == (500, "model_load_failed")
        assert "log says why" in body["error"]["message"]
        assert server.post("/v1/chat/completions", {"model": "fake", "messages": HI})[0] == 200
        assert server.get("/health")[1]["models"]["broken"]["status"] == "failed"


def test_an_answer_is_not_cut_off_by_its_keep_alive() -> None:
    with running(answer="abc" * 30 + "<eos>", tokens_per_second=300, keep_alive_s=0.05) as server:
        until(lambda: server.engine.state.status == "unloaded")
        assert server.get("/health") == (200, {"status": "ok"})
        stream = openai_client(server).chat.completions.create(model="fake", messages=HI, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "abc" * 30
        until(lambda: server.engine.state.status == "unloaded")


def test_a_stream_that_is_left_frees_its_model() -> None:
    with running(answer="a", tokens_per_second=100, context=60_000, keep_alive_s=0.01) as server:
        client = openai_client(server)
        with client.chat.completions.create(model="fake", messages=HI, stream=True) as stream:
            next(iter(stream))
            assert server.engine.state.status == "ready"
        until(lambda: server.engine.state.status == "unloaded")


def test_the_memory_that_is_missing_is_told_in_numbers(tmp_path: Path) -> None:
    """The engine needs 3,000 bytes, of which 1,000 are there; the other model holds 2,000."""
    once = str(tmp_path / "once")
    more = {
        "fits": synthetic_engine(faults="memory", only_once=once),
        "huge": synthetic_engine(faults="memory", short=1),
    }
    with running(others=more) as server:
        status, body = server.post("/v1/chat/completions", {"model": "huge", "messages": HI})
        assert (status, body["error"]["code"]) == (500, "model_load_failed")
        assert "huge needs 3.0 kB of memory, and there would be 2.9 kB" in body["error"]["message"]
        assert server.engine.state.status == "ready"
        assert server.post("/v1/chat/completions", {"model": "fits", "messages": HI})[0] == 200
        assert server.engine.state.status == "unloaded"


@thorough
def test_a_queue_that_is_full_refuses_for_every_model() -> None:
    queue = WaitingQueue(0)
    slow = synthetic_engine(answer="a", tokens_per_second=100, context=60_000, queue=queue)
    with running(engine=slow, others={"other": synthetic_engine(queue=queue)}) as server:
        client = openai_client(server)
        with client.chat.completions.create(model="fake", messages=HI, stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.InternalServerError, match="waiting"):
                client.chat.completions.create(model="other", messages=HI)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *[("5m", 300), ("1h", 3600), ("1h30m", 5400), ("0", 0), (0, 0), (2.5, 2.5), ("300", 300), ("1.5s", 1.5)],
        *[("-1", FOREVER), (-1, FOREVER), ("-1m", FOREVER)],
    ],
)
def test_durations(given: str | float, wanted: float) -> None:
    assert seconds(given, "--keep-alive") == wanted


@pytest.mark.parametrize("given", ["", "5 minutes", "m", "5x", "--1"])
def test_no_durations(given: str) -> None:
    with pytest.raises(UsageError, match="--keep-alive"):
        seconds(given, "--keep-alive")


def test_the_names_of_models(tmp_path: Path) -> None:
    for name in ("a.gguf", "notes.txt", "b/config.json", "c/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folder = str(tmp_path)
    assert named(["smollm2-135m", folder], None)[0] == {
        "smollm2-135m": "smollm2-135m",
        "a.gguf": f"{folder}/a.gguf",
        "b": f"{folder}/b",
    }
    assert named([f"{folder}/b"], "one,two") == ({"one": f"{folder}/b"}, {"one": ["two"]})
    with pytest.raises(UsageError, match="Two models"):
        named([folder, f"{folder}/b"], None)
    with pytest.raises(UsageError, match="--served-model-name"):
        named([folder], "one")
