"""A last message of the assistant is gone on with, in every API; the prompt shows where the model is left to go on."""

from __future__ import annotations

from typing import Any

import pytest
from running import Running, anthropic_client, openai_client

BEGUN: Any = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "The capital is "}]
OPEN = "[user]Capital?[assistant]The capital is "
CHAT = "/v1/chat/completions"


def prompt(server: Running) -> str:
    return server.detokenized(list(server.answers[-1].request.tokens))


def test_openai(server: Running) -> None:
    answer = openai_client(server).chat.completions.create(model="fake", messages=BEGUN)
    assert prompt(server) == OPEN
    assert answer.choices[0].message.content == "Hello there."  # what follows, without what was given


def test_anthropic(server: Running) -> None:
    anthropic_client(server).messages.create(model="fake", max_tokens=9, messages=BEGUN)
    assert prompt(server) == OPEN
    counted = anthropic_client(server).messages.count_tokens(model="fake", messages=BEGUN)
    assert counted.input_tokens == len(OPEN)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"continue_final_message": True, "add_generation_prompt": False}, OPEN),
        ({"add_generation_prompt": True}, OPEN + "[assistant]"),
        ({"continue_final_message": False}, OPEN + "[assistant]"),
        ({"messages": BEGUN[:1], "continue_final_message": True, "add_generation_prompt": False}, "[user]Capital?"),
        ({"messages": [*BEGUN[:1], {"role": "assistant", "content": None}]}, "[user]Capital?[assistant]"),
        ({"messages": [*BEGUN, {"role": "user", "content": "So?"}]}, OPEN + "[user]So?[assistant]"),
    ],
)
def test_as_vllm_has_it(server: Running, fields: dict[str, Any], shown: str) -> None:
    assert server.post(CHAT, {"messages": BEGUN} | fields)[0] == 200
    assert prompt(server) == shown
    status, body = server.post("/tokenize", {"messages": BEGUN} | fields)
    assert (status, body["count"]) == (200, len(shown))


def test_both_at_once_contradict_each_other(server: Running) -> None:
    fields = {"continue_final_message": True, "add_generation_prompt": True}
    status, body = server.post(CHAT, {"messages": BEGUN} | fields)
    assert status == 400
    assert "continue_final_message" in body["error"]["message"]
