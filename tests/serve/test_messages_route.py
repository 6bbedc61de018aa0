"""/v1/messages as Anthropic's own client sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from running import Running, anthropic_client
from tool_engines import CALLS, WEATHER

from fake_model import encode

HI: Any = [{"role": "user", "content": "Hi"}]
ASK: Any = {"model": "fake", "max_tokens": 100, "messages": HI}
TOOLS: Any = [{"name": "weather", "description": "…", "input_schema": WEATHER}]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_an_answer_in_one_piece(server: Running) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = anthropic_client(server).messages.create(**ASK, system=system)
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
    assert text_of(answer) == "Hello there."
    assert answer.usage.output_tokens == len("Hello there.")
    prompt = "[system]Be brief.[user]Hi[assistant]"
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == len(prompt)
    assert list(server.answers[-1].request.tokens) == encode(prompt)


def test_an_answer_as_a_stream(server: Running) -> None:
    kinds: list[str] = [event.type for event in anthropic_client(server).messages.create(**ASK, stream=True)]
    deltas = kinds.count("content_block_delta")
    assert [kind for kind in kinds if kind != "ping"] == [
        "message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


def test_the_client_can_put_a_stream_together(caller: Running) -> None:
    with anthropic_client(caller).messages.stream(**ASK, tools=TOOLS) as stream:
        assert "".join(stream.text_stream) == "Let me see."
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    assert answer.content[1].type == "tool_use"
    assert answer.content[1].input == {"city": "Paris"}
    assert answer.usage.output_tokens == len("Let me see.\n" + CALLS["hermes"])


def test_the_async_client_too(server: Running) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            whole = await client.messages.create(**ASK)
            async with client.messages.stream(**ASK) as stream:
                return [text_of(whole), "".join([text async for text in stream.text_stream])]

    assert asyncio.run(ask()) == ["Hello there."] * 2


def test_why_it_ended(server: Running) -> None:
    client = anthropic_client(server)
    cut = client.messages.create(**ASK | {"max_tokens": 3})
    assert (text_of(cut), cut.stop_reason) == ("Hel", "max_tokens")
    stopped = client.messages.create(**ASK, stop_sequences=["zz", " there"])
    assert (text_of(stopped), stopped.stop_reason, stopped.stop_sequence) == ("Hello", "stop_sequence", " there")


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call_and_its_result(caller: Running, choice: Any) -> None:
    client = anthropic_client(caller)
    if choice["type"] != "auto":  # it begins with words, and so does not follow the form
        with pytest.raises(anthropic.BadRequestError, match="cannot be followed"):
            client.messages.create(**ASK, tools=TOOLS, tool_choice=choice)
        return
    answer = client.messages.create(**ASK, tools=TOOLS, tool_choice=choice)
    text, call = answer.content
    assert (text.type, call.type, answer.stop_reason) == ("text", "tool_use", "tool_use")
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain."}]}
    said: Any = [block.model_dump() for block in answer.content]
    history: Any = [
        *HI, {"role": "assistant", "content": said},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]  # fmt: skip
    client.messages.create(**ASK | {"messages": history}, tools=TOOLS)
    prompt = caller.detokenized(list(caller.answers[-1].request.tokens))
    assert "[user]Hi[assistant]Let me see.[{" in prompt
    assert prompt.endswith("[tool]Rain.[user]So?[assistant]")


def test_tokens_can_be_counted(server: Running) -> None:
    counted = anthropic_client(server).messages.count_tokens(model="fake", messages=HI, system="Be brief.")
    assert counted.input_tokens == len("[system]Be brief.[user]Hi[assistant]")


def test_errors_have_the_form_that_the_client_knows(server: Running) -> None:
    client = anthropic_client(server)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASK, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**ASK | {"model": "other"})
    assert caught.value.body["type"] == "error"  # type: ignore[index]
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0"):
        client.messages.create(**ASK | {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})
