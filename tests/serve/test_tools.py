"""Functions that models call, through OpenAI's chat API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from running import Running, openai_client, running
from tool_engines import CALLS, WEATHER, tool_engine

from monolane.serve.tool_parser import Call, Part, ToolParser, parser_for

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
ASK: Any = {"model": "fake", "messages": [{"role": "user", "content": "Weather in Paris?"}]}


@pytest.fixture(scope="module", params=list(CALLS))
def styled(request: pytest.FixtureRequest) -> Iterator[Running]:
    """One for each way to write calls."""
    with running(engine=tool_engine(request.param, CALLS[request.param])) as server:
        server.style_answer = CALLS[request.param]
        yield server


@pytest.fixture(scope="module")
def client(styled: Running) -> openai.OpenAI:
    return openai_client(styled)


def test_a_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, tools=TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_can_be_forced(styled: Running, client: openai.OpenAI, choice: Any) -> None:
    """The synthetic engine cannot follow a form; what it is told can be tried without it."""
    with pytest.raises(openai.BadRequestError, match="cannot be followed"):
        client.chat.completions.create(**ASK, tools=TOOLS, tool_choice=choice)
    grammar = styled.answers[-1].grammar
    assert grammar is not None
    written = styled.style_answer
    assert follows(grammar, written)
    assert not follows(grammar, written.replace("Paris", 'Paris", "unknown": "'))
    assert not follows(grammar, written.replace("weather", "whether"))
    assert not follows(grammar, "Hello")


def follows(grammar: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


def test_with_tools_and_a_schema_the_answer_is_a_call_or_follows_the_schema(styled: Running) -> None:
    schema = {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, body = styled.post("/v1/chat/completions", ASK | {"tools": TOOLS, "response_format": form})
    assert status == 400
    assert "cannot be followed" in body["error"]["message"]  # the synthetic engine follows nothing
    grammar = styled.answers[-1].grammar
    assert grammar is not None
    assert follows(grammar, styled.style_answer)
    assert follows(grammar, '{"rain": true}')
    assert not follows(grammar, '{"snow": true}')
    assert not follows(grammar, "Rain.")


def test_arguments_that_are_no_json_are_taken_back(styled: Running) -> None:
    for arguments in ("Paris", '"Paris"', "{", ""):
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [
            *ASK["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "What?"},
        ]  # fmt: skip
        assert styled.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS})[0] == 200


def test_a_call_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASK, tools=TOOLS) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls is not None
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})


def test_the_model_sees_tools_calls_and_results(styled: Running, client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "<eos>"}'}}
    messages: Any = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Rain."},
    ]
    client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
    prompt = styled.detokenized(list(styled.answers[-1].request.tokens))
    assert '"name": "weather"' in prompt
    assert '"arguments": {"city": "<eos>"}' in prompt
    assert prompt.endswith("[tool]Rain.[assistant]")


def test_no_choice_means_no_tools(styled: Running, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content in CALLS.values()
    assert "weather" not in styled.detokenized(list(styled.answers[-1].request.tokens))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [*TOOLS] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}],
          "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(styled: Running, fields: dict[str, Any], named: str) -> None:
    status, body = styled.post("/v1/chat/completions", ASK | {"tools": TOOLS} | fields)
    assert status == 400
    assert named in body["error"]["message"] or body["error"]["param"] == named


# --- finding calls ---


def read(parser: ToolParser, pieces: list[str], cut: bool = False) -> list[tuple[str, str] | str]:
    """The parts of an answer: calls as (name, arguments), adjacent texts joined. ``cut``: it reached its limit."""
    parts: list[Part] = [part for piece in pieces for part in parser.push(piece)] + parser.flush(cut)
    result: list[tuple[str, str] | str] = []
    for part in parts:
        assert part != ""
        if isinstance(part, Call):
            result.append((part.name, part.arguments))
        elif result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    return result


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "<tool", "_call>", "\n", " ", "text", "<", "[",
     "]", '{"name": "f", "parameters": {"a": 1}}', ",", "{", "}", "```", "```json\n", "`", '{"na', 'me": "f"', "json"]
)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.lists(PIECES, max_size=8), st.booleans(), st.booleans(), st.data())
def test_calls_do_not_depend_on_where_the_answer_is_cut(
    pieces: list[str], parallel: bool, short: bool, data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(parser_for(["f"], parallel), cut, short) == read(parser_for(["f"], parallel), [text], short)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=8), st.data())
def test_without_tools_every_letter_comes_through(pieces: list[str], data: st.DataObject) -> None:
    assert "".join(map(str, read(parser_for([], True), pieces))) == "".join(pieces)


F = '{"name": "f", "arguments": {"a": 1}}'
CALLED = ("f", '{"a": 1}')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"So.\n<tool_call>\n{F}\n</tool_call>", ["So.", CALLED]),
        (f"<tool_call>{F}", [CALLED]),
        (f"<tool_call>\n{F}}}\n</tool_call>", [CALLED]),
        (F[:-1], [CALLED]),
        (f"```json\n{F[:-2]}", [CALLED]),
        (f"<tool_call>\n{F[:-1]}\n</tool_call>", [CALLED]),
        ("<tool_call>nonsense</tool_call>!", ["<tool_call>nonsense</tool_call>!"]),
        ("a < b, or <tool", ["a < b, or <tool"]),
        (f'<tool_call>{F}</tool_call>\n<tool_call>{{"name": "g", "arguments": "{{}}"}}</tool_call>\n',
         [CALLED, ("g", "{}")]),
        (F, [CALLED]),
        (f"```json\n{F}\n```", [CALLED]),
        (f"I shall ask.\n\n```json\n{F}\n```\nThen I know.", ["I shall ask.", CALLED, "Then I know."]),
        (f"```\n{F}\n```\n```json\n{F}\n```", [CALLED, CALLED]),
        (f"```json\n{F}\n{F}\n```", [CALLED, CALLED]),
        ("{" + F + "}", [CALLED]),
        ("```json\n{" + F + "}\n```", [CALLED]),
        (f"Well:\n{F}", ["Well:", CALLED]),
        (f"say {F}", [f"say {F}"]),
        ('```json\n{"city": "Paris"}\n```', ['```json\n{"city": "Paris"}\n```']),
        ('```json\n{"name": "other", "arguments": {}}\n```', ['```json\n{"name": "other", "arguments": {}}\n```']),
        ('```python\nprint({"name": 1})\n```', ['```python\nprint({"name": 1})\n```']),
        ('{"name": "stranger", "arguments": {}}', ['{"name": "stranger", "arguments": {}}']),
        ('{"name": "f", "parameters": {"a": 1}}', [CALLED]),
        ('{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}', [CALLED]),
        ('{"name": "f", "arguments": "Paris"}', [("f", '"Paris"')]),
        ('{"name": "f", "arguments": null}', [("f", "{}")]),
        ("Just text.", ["Just text."]),
        (f"[{F}, {F}]", [CALLED, CALLED]),
        ("[1, 2]", ["[1, 2]"]),
        ('{"name": "f", oh', ['{"name": "f", oh']),
    ],
)  # fmt: skip
def test_calls_are_found(text: str, found: list[Any]) -> None:
    assert read(parser_for(["f"], True), list(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('So.\n<tool_call>\n{"name": "f", "argu', ["So."]),
        ("<tool_call>", []),
        ('```json\n{"name": "f", "arguments": {"a"', []),
        ('{"name": "f', []),
        ('{"name": "stran', ['{"name": "stran']),
        ('```json\n{"city": "Pa', ['```json\n{"city": "Pa']),
        (f'{F}\n{{"name": "f", "arg', [CALLED]),
    ],
)
def test_a_call_that_was_cut_off_is_no_text(text: str, found: list[Any]) -> None:
    assert read(parser_for(["f"], True), list(text), cut=True) == found


def test_text_that_cannot_be_a_call_is_not_held_back() -> None:
    parser = parser_for(["f"], True)
    assert parser.push("```python\nx = 1") == ["```python\nx = 1"]
    assert parser_for(["f"], True).push('{"city": "Par') == ['{"city": "Par']
