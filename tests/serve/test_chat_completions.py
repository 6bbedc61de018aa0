from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from running import Running, open_chat, post, running, until

from fake_llm import encode

HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]


def test_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=HI)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("Hello there.")
    assert answer.usage.prompt_tokens == len("[user]Hi[assistant]")
    timings = answer.model_extra["timings"]  # type: ignore[index]
    assert timings["generated_tokens"] == answer.usage.completion_tokens
    assert timings["decode_us_per_token"] > 0


def test_an_answer_as_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="fake", messages=HI, stream=True, stream_options=options))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello there."
    assert len({chunk.id for chunk in chunks}) == 1
    *_, last, usage = chunks
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert last.model_extra["timings"]["generated_tokens"] == len("Hello there.")  # type: ignore[index]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len("Hello there.")


def test_a_stream_has_no_usage_unless_asked(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="fake", messages=HI, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_async_client_too(server: Running) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_three() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client) for _ in range(3)))

    assert asyncio.run(ask_three()) == ["Hello there."] * 3


def test_all_sampling_fields_reach_the_target(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(
        model="fake", messages=HI, max_completion_tokens=7, temperature=0.5, top_p=0.9, seed=11, stop=["zz", "yy"],
        presence_penalty=0.25, frequency_penalty=-0.5, logit_bias={"65": -5}, n=1, user="me", metadata={"a": "b"},
        response_format={"type": "text"}, logprobs=True, top_logprobs=3,
        extra_body={"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "tools": None},
    )  # fmt: skip
    request = server.target.requests[-1]
    sampling = request.sampling
    assert (request.max_tokens, request.logprobs, request.stop_tokens) == (7, 3, frozenset())
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 40, 0.9, 0.05)
    assert (sampling.seed, sampling.repetition_penalty) == (11, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
    assert sampling.logit_bias == ((65, -5.0),)


def test_the_temperature_is_one_unless_given(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(messages=HI, model="fake", max_tokens=1)
    assert server.target.requests[-1].sampling.temperature == 1.0


def test_stop_strings_and_length(client: openai.OpenAI) -> None:
    stopped = client.chat.completions.create(model="fake", messages=HI, stop=" there")
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("Hello", "stop")
    cut = client.chat.completions.create(model="fake", messages=HI, max_tokens=3)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("Hel", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model="fake", messages=HI, logprobs=True, top_logprobs=2, stream=stream
    )
    parts = [chunk.choices[0].logprobs for chunk in answer] if stream else [answer.choices[0].logprobs]
    entries = [entry for part in parts if part for entry in part.content]
    assert "".join(entry.token for entry in entries) == "Hello there."
    assert entries[0].bytes == [ord("H")]
    assert entries[0].logprob == -0.5
    assert len(entries[0].top_logprobs) == 2


def test_messages_of_every_kind(client: openai.OpenAI, server: Running) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "d"},
    ]
    client.chat.completions.create(model="fake", messages=messages)
    rendered = "[system]Be brief.[user]ab[assistant]c[user]d[assistant]"
    assert list(server.target.requests[-1].tokens) == encode(rendered)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"messages": []}, "conversation"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "tokens"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "Unicode"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_requests_are_refused_by_name(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body = post(server, json.dumps({"messages": HI, **fields}).encode())
    assert status == 400
    assert named in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'{"messages": 3}', b"\xff\xfe", b"[" * 100_000,
     b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}'],
)  # fmt: skip
def test_bodies_that_are_no_request_are_refused(server: Running, raw: bytes) -> None:
    status, body = post(server, raw)
    assert status == 400
    assert body["error"]["message"]


def test_a_body_that_is_too_large_is_refused(server: Running) -> None:
    status, body = post(server, b" " * (17 << 20))
    assert status == 413
    assert "MiB" in body["error"]["message"]


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="fake") as caught:
        client.chat.completions.create(model="gpt-99", messages=HI)
    assert caught.value.code == "model_not_found"


def test_unknown_addresses_get_an_error_of_the_same_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="fake", input="x")
    assert caught.value.type == "invalid_request_error"


def test_a_failure_of_the_target_is_told_and_survived(server: Running, client: openai.OpenAI) -> None:
    server.target.fails_after = 2
    try:
        with pytest.raises(openai.InternalServerError, match="stuck"):
            client.chat.completions.create(model="fake", messages=HI)
        stream = client.chat.completions.create(model="fake", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="stuck"):
            list(stream)
    finally:
        server.target.fails_after = None
    assert client.chat.completions.create(model="fake", messages=HI).choices[0].message.content == "Hello there."


def test_the_raw_stream_is_server_sent_events(server: Running) -> None:
    with open_chat(server, json.dumps({"messages": HI, "stream": True}).encode()) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])


def test_requests_are_answered_in_the_order_they_came() -> None:
    with running("abcdefgh<eos>") as server:
        server.target.pace_s = 0.005
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20)

        def ask(text: str) -> None:
            client.chat.completions.create(model="fake", messages=[{"role": "user", "content": text}])

        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=ask, args=[str(number)]))
            threads[-1].start()
            until(lambda: len(server.target.requests) + server.waiting() > number)  # noqa: B023
        for thread in threads:
            thread.join(20)
        asked = [list(request.tokens) for request in server.target.requests]
        assert asked == [encode(f"[user]{number}[assistant]") for number in range(4)]
