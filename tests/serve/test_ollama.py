"""Ollama's routes, with Ollama's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from running import Running, running, until
from tool_engines import TEMPLATES, WEATHER

from fake_model import TEMPLATE, encode, fake_model, with_chat
from monolane.model.chat import ChatTemplate
from monolane.serve.thinking import ThinkingParser
from synthetic_engine import synthetic_engine

HI = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]


def client_of(server: Running) -> ollama.Client:
    return ollama.Client(host=server.url)


@pytest.fixture(scope="module")
def ollama_client(server: Running) -> ollama.Client:
    return client_of(server)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    """One that thinks, then calls a function."""
    model = with_chat(fake_model(), ChatTemplate("{# enable_thinking #}" + TEMPLATES["hermes"], {}))
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    answer = f"<think>\nHm, Paris.\n</think>\n\nLet me see.\n{call}<eos>"
    with running(engine=synthetic_engine(model=model, answer=answer, context=4096)) as server:
        yield server


def test_a_chat(ollama_client: ollama.Client) -> None:
    answer = ollama_client.chat("fake", HI)
    assert (answer.message.role, answer.message.content) == ("assistant", "Hello there.")
    assert (answer.model, answer.done, answer.done_reason) == ("fake", True, "stop")
    assert answer.eval_count == len("Hello there.")
    assert answer.prompt_eval_count == len("[user]Hi[assistant]")
    assert answer.total_duration is not None
    assert answer.eval_duration is not None
    assert answer.prompt_eval_duration is not None
    assert answer.load_duration is not None
    assert 0 < answer.eval_duration < answer.total_duration
    assert 0 < answer.prompt_eval_duration < answer.total_duration


def test_a_chat_as_a_stream(ollama_client: ollama.Client, server: Running) -> None:
    *pieces, last = ollama_client.chat("fake:latest", HI, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == "Hello there."
    assert (last.done, last.done_reason, last.eval_count) == (True, "stop", len("Hello there."))
    with server.open("/api/chat", b'{"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}') as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"prompt": "Hi"}, "[user]Hi[assistant]"),
        ({"prompt": "Hi", "system": "Be brief."}, "[system]Be brief.[user]Hi[assistant]"),
        ({"prompt": "Hi", "raw": True}, "Hi"),
    ],
)
def test_a_text(ollama_client: ollama.Client, server: Running, fields: dict[str, Any], prompt: str) -> None:
    answer = ollama_client.generate("fake", **fields)
    assert (answer.response, answer.done_reason) == ("Hello there.", "stop")
    assert list(server.answers[-1].request.tokens) == encode(prompt)
    assert "".join(piece.response for piece in ollama_client.generate("fake", stream=True, **fields)) == "Hello there."


def test_options(ollama_client: ollama.Client, server: Running) -> None:
    options = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.25, "seed": 42, "num_predict": 5, "repeat_penalty": 1.5,
        "stop": ["zz"], "num_gpu": 1, "mirostat": 0,
    }  # fmt: skip
    answer = ollama_client.chat("fake", HI, options=options)
    assert (answer.message.content, answer.done_reason) == ("Hello", "length")
    request = server.answers[-1].request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 3, 0.25, 42)
    assert (sampling.repetition_penalty, request.max_tokens) == (1.5, 5)
    assert ollama_client.chat("fake", HI, options={"stop": ["the"]}).message.content == "Hello "


def test_without_options_the_model_is_sampled_as_its_makers_suggest(
    ollama_client: ollama.Client, server: Running
) -> None:
    ollama_client.chat("fake", HI, options={"num_predict": -1})
    suggested = server.get("/machine")[1]["sampling"]
    sampling = server.answers[-1].request.sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (
        suggested["temperature"],
        suggested["repetition_penalty"],
    )
    ollama_client.chat("fake", HI, options={"temperature": 0})
    sampling = server.answers[-1].request.sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (0, 1)


def test_a_context_that_is_not_there_is_told(server: Running) -> None:
    body = b'{"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_ctx": 9999}}'
    with server.open("/api/chat", body) as response:
        assert "256 tokens" in response.headers["Warning"]


@pytest.mark.parametrize("form", ["json", WEATHER])
def test_a_form_reaches_the_engine(ollama_client: ollama.Client, server: Running, form: Any) -> None:
    """The synthetic engine cannot follow one, which is how we know that it was told."""
    with pytest.raises(ollama.ResponseError, match="cannot be followed"):
        ollama_client.chat("fake", HI, format=form)
    with pytest.raises(ollama.ResponseError, match="cannot be followed"):
        ollama_client.generate("fake", "Hi", raw=True, format=form)
    assert server.answers[-1].grammar is not None


def test_tools_and_thoughts(thinker: Running) -> None:
    client = client_of(thinker)
    answer = client.chat("fake", HI, tools=TOOLS, think=True)
    assert (answer.message.thinking, answer.message.content) == ("Hm, Paris.\n", "Let me see.")
    assert answer.message.tool_calls is not None
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
    pieces = [piece.message for piece in client.chat("fake", HI, tools=TOOLS, think=True, stream=True)]
    assert "".join(piece.thinking or "" for piece in pieces) == "Hm, Paris.\n"
    assert "".join(piece.content or "" for piece in pieces) == "Let me see."
    assert [call.function.name for piece in pieces for call in piece.tool_calls or ()] == ["weather"]
    back = [*HI, answer.message, {"role": "tool", "content": "Sunny.", "tool_name": "weather"}]
    assert client.chat("fake", back, tools=TOOLS).done
    rendered = thinker.detokenized(list(thinker.answers[-1].request.tokens))
    assert '"city": "Paris"' in rendered
    assert "[tool]Sunny." in rendered
    assert "<think>" in (client.chat("fake", HI).message.content or "")  # who does not ask gets all as it is
    assert set(client.show("fake").capabilities or ()) == {"completion", "tools", "thinking"}


def test_what_models_there_are(ollama_client: ollama.Client, server: Running) -> None:
    [model] = ollama_client.list().models
    assert (model.model, model.details and model.details.family) == ("fake", "fake")
    [running_model] = ollama_client.ps().models
    assert (running_model.model, running_model.size, running_model.size_vram) == ("fake", 2_000, 0)
    assert running_model.expires_at is not None
    assert running_model.expires_at.year == 9999
    shown = ollama_client.show("fake")
    assert shown.template == TEMPLATE
    assert shown.modelinfo is not None
    assert shown.modelinfo["fake.context_length"] == 256
    assert shown.capabilities == ["completion"]
    assert server.get("/api/version")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/api/chat", {"model": "other", "messages": HI}, 404, "no model 'other'"),
        ("/api/show", {"model": "other"}, 404, "no model 'other'"),
        ("/api/chat", {"messages": HI}, 400, "model is missing"),
        ("/api/chat", {"model": "fake", "messages": HI, "think": True}, 400, "does not support thinking"),
        ("/api/chat", {"model": "fake", "messages": [HI[0] | {"images": ["x"]}]}, 400, "images is not supported"),
        ("/api/chat", {"model": "fake", "messages": HI, "options": {"top_p": 2}}, 400, "top_p"),
        ("/api/chat", {"model": "fake", "messages": HI, "keep_alive": "soon"}, 400, "keep_alive"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "format": "xml"}, 400, "format"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "context": [1]}, 400, "context is not supported"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "suffix": "x"}, 400, "suffix"),
        ("/api/pull", {"model": "fake"}, 501, "not supported"),
    ],
)
def test_errors_are_told_as_ollama_tells_them(
    server: Running, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    found, answer = server.post(path, body)
    assert found == status
    assert list(answer) == ["error"]
    assert told in answer["error"]


def test_models_come_and_go_as_a_request_asks() -> None:
    with running(others={"other": synthetic_engine(answer="Other.<eos>")}) as server:
        client = client_of(server)
        other = server.service.models[1].engine
        assert client.generate("other", keep_alive=0).done_reason == "unload"
        assert other.state.status == "unloaded"  # it was not loaded for that
        assert client.generate("other").done_reason == "load"
        assert [model.model for model in client.ps().models] == ["fake", "other"]
        answer = client.chat("other", HI, keep_alive=0)
        assert answer.message.content == "Other."
        until(lambda: other.state.status == "unloaded")
        assert [model.model for model in client.list().models] == ["fake", "other"]


@pytest.mark.parametrize(
    ("text", "inside", "thought", "said"),
    [
        ("<think>\na < b\n</think>\n\nYes.", False, "a < b\n", "Yes."),
        ("Yes. <think>no</think>", False, "", "Yes. <think>no</think>"),
        ("so</think>Yes.", True, "so", "Yes."),
        ("<think>cut off </thi", False, "cut off </thi", ""),
        ("<thin", False, "", "<thin"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_thoughts_are_told_from_words(text: str, inside: bool, thought: str, said: str, size: int) -> None:
    parser = ThinkingParser(inside)
    pieces = [parser.push(text[i : i + size]) for i in range(0, len(text), size)]
    pieces.append(parser.flush())
    assert ("".join(first for first, _ in pieces), "".join(second for _, second in pieces)) == (thought, said)
