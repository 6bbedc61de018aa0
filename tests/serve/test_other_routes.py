"""Completions, models, tokens, metrics, and the routes that the playground uses."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import openai
import pytest
from running import Running, anthropic_client, running

import monolane
from fake_model import encode
from monolane.engine.chat_tokenizer import ChatTokenizer


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


@pytest.mark.parametrize("prompt", [["Hi", "Ho ho"], [encode("Hi"), encode("Ho ho")]])
def test_several_prompts_are_answered_in_one_response(client: openai.OpenAI, prompt: Any) -> None:
    answer = client.completions.create(model="fake", prompt=prompt)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "Hello there."), (1, "Hello there.")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2 * len("Hello there."))


def test_an_echo_has_the_logprobs_of_the_prompt(client: openai.OpenAI) -> None:
    """As lm-eval asks for them. To the fake target, the token before is the likeliest, and the next id the second."""
    answer = client.completions.create(model="fake", prompt="aab", echo=True, logprobs=2, max_tokens=1)
    assert answer.choices[0].text == "aabH"
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens == ["a", "a", "b", "H"]
    assert told.text_offset == [0, 1, 2, 3]
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    assert next(iter(told.top_logprobs[1].items())) == ("a", told.token_logprobs[1])
    assert list(told.top_logprobs[2]) == ["a", "b"]
    assert told.token_logprobs[2] == told.top_logprobs[2]["b"] == pytest.approx(told.token_logprobs[1] - 1)
    assert sum(math.exp(logprob) for logprob in told.top_logprobs[1].values()) < 1


def test_an_echo_has_one_more_token_even_at_the_end() -> None:
    with running(answer="<eos>") as server:
        body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 1}
        _, answer = server.post("/v1/completions", body)
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 3
    assert answer["choices"][0]["text"] == "ab"


def test_an_echo_as_a_stream(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="fake", prompt="Hi", echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "HiHello there."


def test_a_suffix_is_filled_up_to_where_the_tokenizer_knows_how() -> None:
    marks = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3}
    tokenizer = SimpleNamespace(token_id=marks.get, encode=lambda text, special: [ord(letter) for letter in text])
    model: Any = SimpleNamespace(tokenizer=tokenizer, name="m")
    assert ChatTokenizer(model).infill_tokens("ab", "c") == [1, 97, 98, 2, 99, 3]


def test_the_tokenizer_is_described(server: Running) -> None:
    status, info = server.get("/tokenizer_info")
    assert status == 200
    assert (info["eos_token"], info["bos_token"], info["model_max_length"]) == ("<eos>", "<bos>", 256)
    assert "[assistant]" in info["chat_template"]


def test_a_model_may_have_several_names() -> None:
    with running(aliases=("gpt-4o", "default")) as server:
        assert [card["id"] for card in server.get("/v1/models")[1]["data"]] == ["fake", "gpt-4o", "default"]
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
        assert server.post("/v1/chat/completions", body)[0] == 200
        assert server.get("/v1/models/default")[1]["root"] == "fake"


def test_anthropics_client_lists_models_too(server: Running) -> None:
    [model] = anthropic_client(server).models.list()
    assert (model.id, model.display_name, model.type) == ("fake", "fake", "model")
    assert model.created_at.year >= 2024


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/fake", "/version", "/docs", "/"])
def test_head_and_slashes_at_the_end(server: Running, path: str) -> None:
    status, body = server.get(path)
    assert server.get(path.rstrip("/") + "/") == (status, body) == (200, body)
    with urlopen(Request(server.url + path, method="HEAD"), timeout=30) as response:
        assert (response.status, response.read()) == (200, b"")


def test_a_slash_at_the_end_of_a_route_for_posts(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert server.post("/v1/chat/completions/", body)[0] == 200


def test_the_description_for_people_needs_no_net(server: Running) -> None:
    status, page = server.get("/docs")
    assert status == 200
    assert "POST /v1/chat/completions" in page
    assert "max_tokens" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


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
        ({"prompt": ["a", "b"], "stream": True}, "prompts"),
        ({"prompt": ["a"] * 129}, "prompts"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"suffix": "x", "prompt": [65]}, "suffix"),
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
