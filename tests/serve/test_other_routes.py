"""Completions, models, tokens, metrics, and the routes that the playground uses."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from running import Running, running

import monolane
from fake_model import encode


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list()
    assert (model.id, model.object) == ("fake", "model")
    assert model.model_extra["max_model_len"] == 256  # type: ignore[index]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], encode("Hi"), [encode("Hi")]])
def test_a_completion(client: openai.OpenAI, server: Running, prompt: Any) -> None:
    answer = client.completions.create(model="fake", prompt=prompt)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello there.", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2
    assert list(server.answers[-1].request.tokens) == encode("Hi")


def test_a_completion_as_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.completions.create(model="fake", prompt="Hi", stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello there."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("Hello there.")


def test_a_completion_has_sixteen_tokens_unless_asked(client: openai.OpenAI, server: Running) -> None:
    client.completions.create(model="fake", prompt="Hi")
    assert server.answers[-1].request.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_completion(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.completions.create(model="fake", prompt="Hi", logprobs=2, stream=stream)
    parts = [chunk.choices[0].logprobs for chunk in answer] if stream else [answer.choices[0].logprobs]
    shown = [part for part in parts if part]
    assert "".join(token for part in shown for token in part.tokens) == "Hello there."
    assert [offset for part in shown for offset in part.text_offset] == list(range(len("Hello there.")))
    assert all(len(top) == 2 for part in shown for top in part.top_logprobs)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 4}, "n"),
    ],
)
def test_bad_completions_are_refused_by_name(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body = server.post("/v1/completions", {"prompt": "Hi"} | fields)
    assert status == 400
    assert named in body["error"]["message"].lower()


def test_tokens_there_and_back(server: Running) -> None:
    status, body = server.post("/tokenize", {"prompt": "Grüße <eos>"})
    assert status == 200
    assert body["tokens"] == encode("Grüße <eos>")
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), 256)
    assert server.detokenized(body["tokens"]) == "Grüße <eos>"
    status, body = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
    assert body["tokens"] == encode("[user]Hi[assistant]")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": "a", "model": "other"}),
        ("/tokenize", {"prompt": "\ud83d"}),
        ("/detokenize", {"tokens": [99999]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_bad_requests_for_tokens_are_refused(server: Running, path: str, body: Any) -> None:
    assert server.post(path, body)[0] in (400, 404)


def test_version_and_description(server: Running) -> None:
    assert server.get("/version") == (200, {"version": monolane.__version__})
    status, schema = server.get("/openapi.json")
    assert status == 200
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/metrics", "/health"} <= set(schema["paths"])
    assert server.get("/docs")[0] == 200


def test_metrics(server: Running, client: openai.OpenAI) -> None:
    before = metrics(server)
    client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "Hi"}])
    after = metrics(server)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown('vllm:generation_tokens_total{model_name="fake"}') == len("Hello there.<")  # the end token is one too
    assert grown('vllm:prompt_tokens_total{model_name="fake"}') == len("[user]Hi[assistant]")
    assert grown('vllm:request_success_total{finished_reason="stop",model_name="fake"}') == 1
    assert grown('vllm:time_to_first_token_seconds_count{model_name="fake"}') == 1
    assert grown('vllm:inter_token_latency_seconds_count{model_name="fake"}') == 1
    assert after['vllm:num_requests_running{model_name="fake"}'] == 0
    assert after['vllm:num_requests_waiting{model_name="fake"}'] == 0
    used = after['monolane:memory_read_bytes_per_second{model_name="fake"}']
    assert after['monolane:memory_bandwidth_utilisation_ratio{model_name="fake"}'] == pytest.approx(used / 1e15)


def metrics(server: Running) -> dict[str, float]:
    status, text = server.get("/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9_:]+\{.*\} \S+", line) for line in lines)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_playground_is_at_the_root(server: Running) -> None:
    status, page = server.get("/")
    assert status == 200
    assert "<title>" in page
    assert server.get("/playground/main.js")[0] == 200
    status, machine = server.get("/machine")
    assert status == 200
    assert (machine["model"], machine["device"], machine["context"]) == ("fake", "synthetic", 256)
    assert machine["ceiling_bytes_per_s"] == 1e15


def test_no_page_of_another_site_may_read_answers(server: Running) -> None:
    with server.open("/v1/models", None, Origin="https://example.com") as response:
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_pages_of_named_sites_may() -> None:
    with running(allow_origins=("https://example.com",)) as server:
        with server.open("/v1/models", None, Origin="https://example.com") as response:
            assert response.headers["Access-Control-Allow-Origin"] == "https://example.com"
        with server.open("/v1/models", None, Origin="https://example.org") as response:
            assert response.headers["Access-Control-Allow-Origin"] is None


def test_a_form_without_the_package_for_it_is_told(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolane.engine.grammar.has_llguidance", lambda: False)
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 400
    assert "monolane[grammar]" in answer["error"]["message"]


def test_an_answer_that_must_be_json_is_constrained(server: Running) -> None:
    """The synthetic engine cannot follow a form, which is how we know that it was told."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}):
        body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 400
        assert "cannot be followed" in answer["error"]["message"]
        status, events = server.post("/v1/chat/completions", body | {"stream": True})
        assert "cannot be followed" in json.dumps(events)
    grammar = server.answers[-1].grammar
    assert grammar is not None
    assert json.dumps(schema["properties"]) in grammar
