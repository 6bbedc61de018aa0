"""/v1/chat/completions as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import openai
import pytest
from running import Running, running, until

from fake_model import encode

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


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


def test_every_piece_can_tell_how_many_tokens_there_are(client: openai.OpenAI) -> None:
    options: Any = {"continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(model="fake", messages=HI, stream=True, stream_options=options))
    shown = ""
    for chunk in chunks:
        shown += chunk.choices[0].delta.content or ""
        assert chunk.usage is not None
        assert chunk.usage.completion_tokens == len(shown)


def test_what_was_computed_before_is_told(client: openai.OpenAI) -> None:
    ask = [{"role": "user", "content": "a question that nobody else asks"}]
    for reused in (False, True):
        answer = client.chat.completions.create(model="fake", messages=ask, max_tokens=1)  # type: ignore[arg-type]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert (cached == answer.usage.prompt_tokens - 1) is reused


def test_the_async_client_too(server: Running) -> None:
    async def ask(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_three() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client) for _ in range(3)))

    assert asyncio.run(ask_three()) == ["Hello there."] * 3


def test_all_sampling_fields_reach_the_engine(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(
        model="fake", messages=HI, max_completion_tokens=7, temperature=0.5, top_p=0.9, seed=11, stop=["zz", "yy"],
        presence_penalty=0.25, frequency_penalty=-0.5, logit_bias={"65": -5}, n=1, user="me", metadata={"a": "b"},
        response_format={"type": "text"}, logprobs=True, top_logprobs=3,
        extra_body={
            "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "tools": None,
            "stop_token_ids": [7],
        },
    )  # fmt: skip
    request = server.answers[-1].request
    sampling = request.sampling
    assert (request.max_tokens, request.logprobs, request.stop_tokens) == (7, 3, frozenset({7}))
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 40, 0.9, 0.05)
    assert (sampling.seed, sampling.repetition_penalty) == (11, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
    assert sampling.logit_bias == ((65, -5.0),)


def test_the_temperature_is_one_unless_given(client: openai.OpenAI, server: Running) -> None:
    client.chat.completions.create(messages=HI, model="fake", max_tokens=1)
    assert server.answers[-1].request.sampling.temperature == 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_and_length(client: openai.OpenAI, stream: bool) -> None:
    def ask(**fields: Any) -> tuple[str, str]:
        answer: Any = client.chat.completions.create(model="fake", messages=HI, stream=stream, **fields)
        if not stream:
            return answer.choices[0].message.content, answer.choices[0].finish_reason
        chunks = list(answer)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks[-1].choices[0].finish_reason

    assert ask(stop=" there") == ("Hello", "stop")
    assert ask(max_tokens=3) == ("Hel", "length")


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
        {"role": "tool", "content": "d", "tool_call_id": "1"},
        {"role": "user", "content": "e"},
    ]
    client.chat.completions.create(model="fake", messages=messages)
    rendered = "[system]Be brief.[user]ab[assistant]c[tool]d[user]e[assistant]"
    assert list(server.answers[-1].request.tokens) == encode(rendered)


@pytest.mark.parametrize(
    "content", ["a <eos> b", "<eos>", "<<eos>eos>", [{"type": "text", "text": "<e"}, {"type": "text", "text": "os>"}]]
)
def test_nobody_can_write_a_control_token(server: Running, content: Any) -> None:
    assert server.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 1})[0] == 200
    tokens = list(server.answers[-1].request.tokens)
    assert encode("<eos>")[0] not in tokens
    text = content if isinstance(content, str) else "<eos>"
    assert server.detokenized(tokens) == f"[user]{text}[assistant]"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"audio": {}}, "audio"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a" * 257]}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"messages": []}, "conversation"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0: images are not supported",
        ),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "tokens"),
        ({"messages": [{"role": "user", "content": "x" * 50_000}]}, "characters"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "Unicode"),
        ({"\ud83d": 1}, "not supported"),
        ({"a" * 100_000: 1}, "not supported"),
        ({"seed": -2}, "seed"),
    ],
)
def test_bad_requests_are_refused_by_name(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body = server.post(CHAT, {"messages": HI, **fields})
    assert status == 400
    assert named in body["error"]["message"] or named == "not supported"
    assert len(body["error"]["message"]) < 600
    assert body["error"]["type"] == "invalid_request_error"
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("field", [b"temperature", b"top_p", b"min_p", b"presence_penalty", b"repetition_penalty"])
def test_nan_and_infinite_parameters_are_refused(server: Running, field: bytes, number: bytes) -> None:
    raw = b'{"messages": [{"role": "user", "content": "Hi"}], "%s": %s}' % (field, number)
    status, body = server.post(CHAT, raw)
    assert status == 400
    assert field.decode() in body["error"]["message"]


@pytest.mark.parametrize("token", ["258", "99999", "4294967295", "-1"])
def test_a_logit_bias_out_of_the_vocabulary_is_refused(server: Running, token: str) -> None:
    status, body = server.post(CHAT, {"messages": HI, "logit_bias": {token: 1}})
    assert status == 400
    assert "logit_bias" in body["error"]["message"]


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\\ud83d"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"])
def test_bad_utf_8_is_refused(server: Running, path: str, bad: bytes) -> None:
    fields = {
        CHAT: b'"messages": [{"role": "user", "content": "%s"}]',
        "/v1/messages": b'"max_tokens": 5, "messages": [{"role": "user", "content": "%s"}]',
        "/v1/responses": b'"input": "%s"',
    }
    status, body = server.post(path, b"{" + fields.get(path, b'"prompt": "%s"') % bad + b"}")
    assert status == 400
    assert body["error"]["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"messages": 3}', b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_request_are_refused(server: Running, raw: bytes) -> None:
    status, body = server.post(CHAT, raw)
    assert status == 400
    assert body["error"]["message"]


def test_a_giant_body_is_refused(server: Running) -> None:
    status, body = server.post(CHAT, b" " * (5 << 20))
    assert status == 413
    assert "MiB" in body["error"]["message"]


def test_a_page_of_another_site_cannot_ask_in_the_dark(server: Running) -> None:
    """A browser sends text/plain without asking first; so that is no request."""
    raw = json.dumps({"messages": HI}).encode()
    assert server.call(CHAT, raw, **{"Content-Type": "text/plain"})[0] == 415


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_curl_without_a_content_type_is_told_what_to_send(server: Running, kind: str) -> None:
    status, body = server.call(CHAT, json.dumps({"messages": HI}).encode(), **{"Content-Type": kind})
    assert status == 415
    assert "Content-Type: application/json" in body["error"]["message"]


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="fake") as caught:
        client.chat.completions.create(model="gpt-99", messages=HI)
    assert caught.value.code == "model_not_found"


def test_unknown_addresses_get_an_error_of_the_same_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(input="x")
    assert caught.value.type == "invalid_request_error"


def test_embeddings_are_not_to_be_had_and_not_to_be_asked_for_again(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="no embeddings") as caught:
        client.embeddings.create(model="fake", input="x")
    assert caught.value.status_code == 501
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_the_raw_stream_is_server_sent_events(server: Running) -> None:
    with server.open(CHAT, json.dumps({"messages": HI, "stream": True}).encode()) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])


def test_requests_are_answered_in_the_order_they_came_and_told_their_place() -> None:
    with running(answer="abcdefgh<eos>", tokens_per_second=100) as server:
        texts: dict[int, str] = {}

        def ask(number: int) -> None:
            body = {"messages": [{"role": "user", "content": str(number)}], "stream": True}
            with server.open(CHAT, json.dumps(body).encode()) as response:
                texts[number] = response.read().decode()

        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=ask, args=[number]))
            threads[-1].start()
            until(lambda: len(server.answers) > number)  # noqa: B023
        for thread in threads:
            thread.join(30)
        asked = [list(answer.request.tokens) for answer in server.answers]
        assert asked == [encode(f"[user]{number}[assistant]") for number in range(4)]
        assert ": queue" not in texts[0]
        assert texts[3].startswith(": queue ")
        assert ": queue 1\n\ndata: " in texts[3]
