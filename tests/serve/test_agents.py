"""Requests as coding agents send them, in the shapes of Codex (/v1/responses) and Claude Code (/v1/messages): all that
they add to a plain question, and turns that are sent back whole with their calls and results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from running import Running
from tool_engines import WEATHER

SHELL: Any = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}


def events(server: Running, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """What a stream says, with the name of each event checked against its content."""
    with server.open(path, json.dumps(body | {"stream": True}).encode(), **headers) as response:
        blocks = [block for block in response.read().decode().split("\n\n") if block.startswith("event: ")]
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def prompt(server: Running) -> str:
    return server.detokenized(list(server.answers[-1].request.tokens))


# --- Codex ---


def codex(*turns: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "fake",
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": [_input("Be careful.")]},
            {"type": "message", "role": "developer", "content": [_input("Skills: none.")]},
            {"type": "message", "role": "user", "content": [_input("<cwd>/here</cwd>")]},
            {"type": "message", "role": "user", "content": [_input("Weather?")]},
            *turns,
        ],
        "tools": [
            {"type": "function", "name": "weather", "description": "…", "strict": False, "parameters": WEATHER},
            {"type": "function", "name": "exec_command", "description": "…", "strict": False, "parameters": SHELL},
            {"type": "namespace", "name": "agents", "description": "…", "tools": [{"type": "function", "name": "x"}]},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a1",
        "text": {"verbosity": "low"},
        "client_metadata": {"installation": "x"},
    }


def _input(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def test_codex_asks_gets_a_call_and_sends_its_result(caller: Running) -> None:
    *_, last = events(caller, "/v1/responses", codex(), Originator="codex_exec", Accept="text/event-stream")
    assert last["type"] == "response.completed"
    assert [tool["name"] for tool in last["response"]["tools"]] == [
        "weather",
        "exec_command",
    ]  # what the model was told
    assert "apply_patch" not in prompt(caller)
    text, call = last["response"]["output"]
    assert (text["type"], call["type"], json.loads(call["arguments"])) == (
        "message",
        "function_call",
        {"city": "Paris"},
    )
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
    *_, last = events(caller, "/v1/responses", codex(thought, text, call, result))
    said = prompt(caller)
    assert "[system]Be careful.\n\nSkills: none.[user]<cwd>/here</cwd>[user]Weather?[assistant]Let me see.[{" in said
    assert said.endswith("[tool]Rain.[assistant]")
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] > len("[user]Weather?")


def test_codex_hears_of_a_call_as_it_expects(caller: Running) -> None:
    told = [event for event in events(caller, "/v1/responses", codex()) if event.get("output_index") == 1]
    assert [event["type"] for event in told] == [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    assert told[0]["item"]["status"] == "in_progress"
    assert told[-1]["item"]["call_id"] == told[0]["item"]["call_id"]


def test_a_result_may_come_in_parts(caller: Running) -> None:
    call = {"type": "function_call", "name": "weather", "arguments": '{"city": "Paris"}', "call_id": "1"}
    result = {"type": "function_call_output", "call_id": "1", "output": [_input("Ra"), _input("in.")]}
    assert caller.post("/v1/responses", codex(call, result))[0] == 200
    assert prompt(caller).endswith("[tool]Rain.[assistant]")


# --- Claude Code ---

BETAS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def claude(*turns: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "fake",
        "max_tokens": 2000,
        "system": [{"type": "text", "text": "Be careful."}, {"type": "text", "text": "Skills: none."} | CACHED],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<reminder>x</reminder>"},
                    {"type": "text", "text": "Weather?"} | CACHED,
                ],
            },
            *turns,
        ],
        "tools": [
            {"name": "weather", "description": "…", "input_schema": WEATHER},
            {"name": "Bash", "description": "…", "input_schema": SHELL} | CACHED,
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1000},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "x"},
        "temperature": 1,
    }


def test_claude_code_asks_gets_a_call_and_sends_its_result(caller: Running) -> None:
    told = events(caller, "/v1/messages?beta=true", claude(), **BETAS)
    assert [event["type"] for event in told if event["type"] != "content_block_delta"] == [
        "message_start", "ping", "content_block_start", "content_block_stop", "content_block_start",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    use = next(event["content_block"] for event in told if event.get("content_block", {}).get("type") == "tool_use")
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "Rain.", "is_error": False}
    history = (
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": use["id"], "name": use["name"], "input": {"city": "Paris"}} | CACHED,
            ],
        },
        {"role": "user", "content": [result | CACHED]},
        {"role": "system", "content": "Remember the time."},
    )
    told = events(caller, "/v1/messages?beta=true", claude(*history), **BETAS)
    said = prompt(caller)
    assert "[system]Be careful.\n\nSkills: none.[user]<reminder>x</reminder>Weather?[assistant]Let me see.[{" in said
    assert said.endswith("[tool]Rain.[system]Remember the time.[assistant]")
    assert "hm" not in said
    assert told[0]["message"]["usage"]["cache_read_input_tokens"] > len("[user]Weather?")


def test_claude_code_counts_first(caller: Running) -> None:
    body = {key: value for key, value in claude().items() if key not in ("max_tokens", "metadata", "temperature")}
    status, counted = caller.call("/v1/messages/count_tokens?beta=true", json.dumps(body).encode(), **BETAS)
    assert status == 200
    events(caller, "/v1/messages", claude())
    assert counted["input_tokens"] == len(caller.answers[-1].request.tokens)


def test_claude_code_looks_whether_the_server_is_there(server: Running) -> None:
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("HEAD", "/")
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"")
    connection.close()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
        ("/v1/messages", {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ("/v1/responses", {"conversation": "conv_1"}, "conversation"),
        ("/v1/responses", {"tools": [{"type": "mcp", "server_url": "x"}]}, "tools.0"),
    ],
)
def test_what_only_their_makers_can_do_is_refused_by_name(
    caller: Running, path: str, body: dict[str, Any], named: str
) -> None:
    status, told = caller.post(path, (claude() if path == "/v1/messages" else codex()) | body)
    assert status == 400
    assert named in told["error"]["message"]
