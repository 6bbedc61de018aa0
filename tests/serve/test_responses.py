"""/v1/responses as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from running import Running, openai_client
from tool_engines import WEATHER

from fake_model import encode

TOOLS: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]


def test_an_answer_in_one_piece(server: Running) -> None:
    answer = openai_client(server).responses.create(model="fake", input="Hi", instructions="Be brief.")
    assert (answer.status, answer.output_text) == ("completed", "Hello there.")
    assert answer.usage is not None
    assert answer.usage.output_tokens == len("Hello there.")
    assert answer.model_extra["timings"]["tokens_per_second"] > 0  # type: ignore[index]
    assert list(server.answers[-1].request.tokens) == encode("[system]Be brief.[user]Hi[assistant]")


def test_an_answer_as_a_stream(server: Running) -> None:
    events = list(openai_client(server).responses.create(model="fake", input="Hi", stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there."
    last: Any = events[-1]
    assert last.response.output_text == "Hello there."


def test_the_client_can_put_a_stream_together(caller: Running) -> None:
    with openai_client(caller).responses.stream(model="fake", input="Weather?", tools=TOOLS) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_response()
    assert answer.output_text == "Let me see."
    assert answer.output[1].type == "function_call"


def test_the_async_client_too(server: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.responses.create(model="fake", input="Hi")
            stream = await client.responses.create(model="fake", input="Hi", stream=True)
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            return [whole.output_text, "".join(pieces)]

    assert asyncio.run(ask()) == ["Hello there."] * 2


def test_an_answer_that_is_cut_is_incomplete(server: Running) -> None:
    answer = openai_client(server).responses.create(model="fake", input="Hi", max_output_tokens=3)
    assert (answer.status, answer.output_text) == ("incomplete", "Hel")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_and_its_result(caller: Running, stream: bool) -> None:
    client = openai_client(caller)
    answer: Any = client.responses.create(model="fake", input="Weather?", tools=TOOLS, stream=stream)
    if stream:
        answer = list(answer)[-1].response
    text, call = answer.output
    assert text.content[0].text == "Let me see."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    history = [{"role": "user", "content": "Weather?"}, *(item.model_dump() for item in answer.output), result]
    client.responses.create(model="fake", input=history, tools=TOOLS, store=False)  # type: ignore[arg-type]
    prompt = caller.detokenized(list(caller.answers[-1].request.tokens))
    assert "[user]Weather?[assistant]Let me see.[{" in prompt
    assert prompt.endswith("[tool]Rain.[assistant]")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": []}, "conversation"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_tokens"),
    ],
)
def test_bad_requests_are_refused_by_name(server: Running, fields: dict[str, Any], named: str) -> None:
    status, body = server.post("/v1/responses", {"input": "Hi"} | fields)
    assert status == 400
    assert named in body["error"]["message"]
