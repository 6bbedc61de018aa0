"""In every API, a streamed answer has the same content as a whole one, wherever the stream is split."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_model import fake_model
from monolane.engine.params import SamplingParams
from monolane.engine.prompt import make_transcript
from monolane.engine.result import Completion, Delta
from monolane.serve.answering import Dialect
from monolane.serve.chat_dialect import ChatDialect
from monolane.serve.completions import CompletionDialect, CompletionRequest
from monolane.serve.messages_dialect import MessagesDialect
from monolane.serve.protocol import StreamOptions
from monolane.serve.responses_dialect import ResponsesDialect
from monolane.serve.responses_request import ResponsesRequest
from monolane.serve.thinking import ThinkingParser
from monolane.serve.token_json import TokenJson
from monolane.serve.tool_parser import parser_for
from monolane.target.base import Token

MODEL = fake_model()
TOKENS = TokenJson(MODEL.tokenizer.token_bytes)
ANSWER: Any = SimpleNamespace(prompt_tokens=2, cached_tokens=1, prompt_logprobs=None)
STOPS = ["stop", "<tool_call>x"]

PIECES = st.sampled_from(
    ["Hello ", "ö", "🙂", "st", "op", "stop", "<tool_call>", '{"name": "f", "arguments": {"a": [1]}}', "</tool_call>",
     "<tool", "\n", " ", "x", "<eos>"]
)  # fmt: skip


def dialect(name: str, tools: bool) -> Dialect:
    parser = parser_for(["f"] if tools else [], parallel=True)
    match name:
        case "chat":
            return ChatDialect("m", TOKENS, ANSWER, parser, StreamOptions(include_usage=True))
        case "responses":
            return ResponsesDialect("m", ResponsesRequest(input="Hi"), parser)
        case "messages":
            return MessagesDialect("m", ANSWER, parser)
        case _:
            asked = CompletionRequest(prompt="Hi", stream_options=StreamOptions(include_usage=True))
            return CompletionDialect("m", TOKENS, ANSWER, asked)


def answer(text: str, cuts: list[int]) -> tuple[list[Delta], Completion]:
    """What an engine's tokens become, in batches cut at these places."""
    params = SamplingParams(stop=STOPS)
    transcript = make_transcript(MODEL, 8192, MODEL.tokenizer.encode("Hi"), params)
    tokens = [Token(token, time_ns) for time_ns, token in enumerate(MODEL.tokenizer.encode(text, special=False))]
    places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    deltas = [transcript.take(tokens[a:b]) for a, b in pairwise(places)] + [transcript.flush()]
    result = transcript.completion("stop", cached_tokens=1, queue_s=0.0, start_ns=0, bytes_per_token=1)
    return [delta for delta in deltas if delta is not None], result


def said(name: str, body: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls of a whole answer."""
    match name:
        case "chat":
            message = body["choices"][0]["message"]
            calls = [call["function"] for call in message.get("tool_calls", [])]
            return message["content"] or "", [(call["name"], json.loads(call["arguments"])) for call in calls]
        case "responses":
            texts = [item["content"][0]["text"] for item in body["output"] if item["type"] == "message"]
            calls = [item for item in body["output"] if item["type"] == "function_call"]
            return "".join(texts), [(call["name"], json.loads(call["arguments"])) for call in calls]
        case "messages":
            texts = [block["text"] for block in body["content"] if block["type"] == "text"]
            calls = [block for block in body["content"] if block["type"] == "tool_use"]
            return "".join(texts), [(call["name"], call["input"]) for call in calls]
        case _:
            return body["choices"][0]["text"], []


def streamed(name: str, events: str) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls of a stream, put together as clients do."""
    text, calls = "", []
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        body = json.loads(line[6:])
        match name:
            case "chat":
                delta = body["choices"][0]["delta"] if body["choices"] else {}
                text += delta.get("content") or ""
                for call in delta.get("tool_calls", []):
                    assert call["index"] == len(calls)
                    calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
            case "responses":
                text += body["delta"] if body["type"] == "response.output_text.delta" else ""
                if body["type"] == "response.function_call_arguments.done":
                    calls.append((body["name"], json.loads(body["arguments"])))
            case "messages":
                if body["type"] == "content_block_start" and body["content_block"]["type"] == "tool_use":
                    calls.append((body["content_block"]["name"], None))
                delta = body.get("delta", {})
                text += delta.get("text", "")
                if "partial_json" in delta:
                    calls[-1] = (calls[-1][0], json.loads(delta["partial_json"]))
            case _:
                text += body["choices"][0]["text"] if body["choices"] else ""
    return text, calls


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "messages"])
@given(st.lists(PIECES, max_size=10), st.lists(st.integers(0, 300), max_size=8), st.booleans())
@settings(deadline=None)
def test_a_stream_says_what_the_whole_says(name: str, pieces: list[str], cuts: list[int], tools: bool) -> None:
    deltas, result = answer("".join(pieces), cuts)
    writer = dialect(name, tools)
    events = [*writer.begin(), *(text for delta in deltas for text in writer.piece(delta)), *writer.end(result)]
    whole = said(name, dialect(name, tools).whole(result))
    assert streamed(name, "".join(events)) == whole
    if not tools:
        assert whole == (result.text, [])
    assert "stop" not in whole[0]


def test_the_stop_sequence_that_ended_it_is_told() -> None:
    _, result = answer("Hello stop and more", [])
    body = dialect("messages", False).whole(result)
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "stop")


@given(st.lists(st.integers(0, 100), max_size=8))
@settings(deadline=None, max_examples=40)
def test_thoughts_have_a_field_of_their_own(cuts: list[int]) -> None:
    """As clients of reasoning models expect it, whole and in a stream; a call behind the thoughts is a call."""
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    deltas, result = answer(f"<think>\nHm, é.\n</think>\n\nSo: {call}", cuts)

    def made() -> ChatDialect:
        parser = parser_for(["f"], parallel=True)
        return ChatDialect("m", TOKENS, ANSWER, parser, StreamOptions(), ThinkingParser())

    message = made().whole(result)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, é.\n", "So:")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    stream = made()
    events = [text for delta in deltas for text in stream.piece(delta)] + [*stream.end(result)]
    bodies = [json.loads(text.removeprefix("data: ")) for text in events if "[DONE]" not in text]
    pieces = [body["choices"][0]["delta"] for body in bodies]
    assert "".join(piece.get("reasoning_content", "") for piece in pieces) == "Hm, é.\n"
    assert "".join(piece.get("content", "") for piece in pieces) == "So:"
    assert [piece["tool_calls"][0]["function"]["name"] for piece in pieces if "tool_calls" in piece] == ["f"]
    assert bodies[-1]["choices"][0]["finish_reason"] == "tool_calls"
