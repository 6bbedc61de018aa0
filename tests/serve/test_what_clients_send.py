"""What clients send along is accepted where it changes nothing, and refused by name where it would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from running import Running

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["text"]}, {"verbosity": "low"}, {"min_tokens": 0}, {"skip_special_tokens": True},
        {"top_logprobs": 0}, {"seed": -1}, {"best_of": 1}, {"metadata": {"a": "b"}}, {"store": False},
        {"service_tier": "auto"}, {"reasoning_effort": "low"}, {"prediction": {"type": "content", "content": "x"}},
        {"prompt_cache_retention": "24h"}, {"echo": False}, {"chat_template_kwargs": {"enable_thinking": False}},
        {"stream_options": {"include_usage": True, "other": 1}}, {"response_format": {"type": "text"}},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_harmless_fields_are_accepted(server: Running, fields: dict[str, Any]) -> None:
    status, body = server.post(CHAT, {"messages": HI} | fields)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello there.")


def test_messages_come_back_as_other_servers_have_made_them(server: Running) -> None:
    call = {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "thought": "x"}}
    said = {
        "role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": [],
        "reasoning": "hm", "provider_specific_fields": {"a": 1}, "audio": None, "function_call": None, "images": [],
    }  # fmt: skip
    marked = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    messages = [
        {"role": "user", "content": marked, "cache_control": {}}, said,
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *HI,
    ]  # fmt: skip
    assert server.post(CHAT, {"messages": messages})[0] == 200
    assert server.detokenized(list(server.answers[-1].request.tokens)).endswith("[assistant]No.[user]Hi[assistant]")


def test_items_of_the_other_apis_come_back_too(server: Running) -> None:
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x", "new": 1}],
        "new": 1,
    }
    assert server.post("/v1/responses", {"input": [item, *HI], "top_logprobs": 0})[0] == 200
    block = {"type": "text", "text": "x", "citations": None, "new": 1}
    body = {"max_tokens": 9, "mcp_servers": [], "messages": [{"role": "assistant", "content": [block]}, *HI]}
    assert server.post("/v1/messages", body)[0] == 200


@pytest.mark.parametrize(
    ("path", "fields", "param", "told"),
    [
        (CHAT, {"n": 2}, "n", "n '2' is not supported"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities.1", "audio is not supported"),
        (CHAT, {"web_search_options": {}}, "web_search_options", "not supported"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages.0.content.0", "images are not supported"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, "messages.0.images", "not supported"),
        ("/v1/messages", {"max_tokens": 9, "mcp_servers": [{}]}, None, "mcp_servers is not supported"),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, None,
         "messages.0.content.0: images are not supported"),
    ],
)  # fmt: skip
def test_what_would_make_the_answer_wrong_is_refused_by_name(
    server: Running, path: str, fields: dict[str, Any], param: str | None, told: str
) -> None:
    status, body = server.post(path, {"messages": HI} | fields)
    assert status == 400
    assert told in body["error"]["message"]
    if param is not None:
        assert (body["error"]["param"], body["error"]["code"]) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": "ten"}, "max_tokens must be a whole number."),
        ({"temperature": "hot"}, "temperature must be a number."),
        ({"stream": 1}, "stream must be true or false."),
        ({"messages": 3}, "messages must be a list."),
        ({"messages": ["x"]}, "messages.0 must be an object."),
        ({"messages": None}, "messages is missing."),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name is missing."),
    ],
)
def test_mistakes_are_told_in_words_for_people(server: Running, fields: dict[str, Any], told: str) -> None:
    status, body = server.post(CHAT, {"messages": HI} | fields)
    assert (status, body["error"]["message"]) == (400, told)


@pytest.mark.parametrize("length", [300, 50_000])  # too many tokens, and too many characters to be worth tokenizing
def test_too_long_a_prompt_is_told_as_clients_look_for_it(server: Running, length: int) -> None:
    long = [{"role": "user", "content": "x" * length}]
    status, body = server.post(CHAT, {"messages": long})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 256 tokens" in body["error"]["message"]
    status, body = server.post("/v1/messages", {"max_tokens": 9, "messages": long})
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["message"].startswith("prompt is too long")


def test_what_is_not_done_is_told_in_a_header(server: Running) -> None:
    for stream in (False, True):
        body = {"messages": HI, "min_tokens": 5, "stream": stream}
        with server.open(CHAT, json.dumps(body).encode()) as response:
            assert response.headers["Warning"] == '299 monolane "min_tokens is not enforced"'
    with server.open(CHAT, json.dumps({"messages": HI}).encode()) as response:
        assert response.headers["Warning"] is None
