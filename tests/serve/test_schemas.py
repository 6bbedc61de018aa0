"""Schemas that grammars follow: they are closed, come to an end, and leave out only what they name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from running import Running, anthropic_client, running

from monolane.errors import UsageError
from monolane.serve.schemas import MORE_KEYS, followable

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"]}
BYTES = LLTokenizer("byte")


def accepts(schema: Any, value: Any, strict: bool = False) -> bool:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(followable(schema, "it", strict).schema))
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    text = value if isinstance(value, str) else json.dumps(value)
    return all(matcher.consume_token(byte) for byte in text.encode()) and bool(matcher.is_accepting())


@pytest.mark.parametrize("strict", [False, True])
def test_an_object_has_the_keys_that_it_lists(strict: bool) -> None:
    assert accepts(OPEN, {"a": 1, "b": 2}, strict)
    assert accepts(OPEN, {"b": 2}, strict)
    assert not accepts(OPEN, {"a": 1, "b": 2, "c": 3}, strict)
    assert not accepts({"type": "array", "items": OPEN}, [{"b": 2, "c": 3}], strict)
    assert not accepts({"$ref": "#/$defs/x", "$defs": {"x": OPEN}}, {"b": 2, "c": 3}, strict)


def test_an_object_that_is_to_be_open_has_its_required_keys_first_and_ends() -> None:
    more = OPEN | {"additionalProperties": True}
    assert accepts(more, {"b": 2, "a": 1, "c": 3})
    assert not accepts(more, {"a": 1, "b": 2, "c": 3})
    assert not accepts(more, {"b": 2, "c": 3}, strict=True)
    named = OPEN | {"required": ["a", "b"], "additionalProperties": {"type": "integer"}}
    given = {"a": 1, "b": 2} | {f"k{i}": i for i in range(MORE_KEYS)}
    assert accepts(named, given)
    assert not accepts(named, given | {"last": 1})


def test_the_parts_of_one_object_are_not_closed_apart() -> None:
    parts = [{"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]} for key in "ab"]
    assert accepts({"allOf": parts}, {"a": 1, "b": 2})


def test_white_space_comes_to_an_end() -> None:
    assert accepts(OPEN, '{\n    "b": 1\n}')
    assert not accepts(OPEN, "{" + " " * 100 + '"b": 1}')


@pytest.mark.parametrize(
    ("schema", "good", "bad", "left_out"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 2], ["x"], "uniqueItems"),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, [3], ["x"], "contains"),
        ({"not": {"type": "string"}}, 3, "\"x\"", None),
        ({"enum": [1, 2, 3], "not": {"const": 2}}, 3, 2, None),
        ({"type": "integer", "not": {"multipleOf": 2}}, 3, "\"x\"", "not"),
        ({"type": "string", "pattern": "^(?=.*x)y+$"}, "\"y\"", 3, "pattern"),
        ({"type": "string", "format": "regex"}, "\"y\"", 3, "format regex"),
        ({"type": "object", "properties": {"if": {"type": "integer"}}}, {"if": 3}, {"if": "x"}, None),
        ({"oneOf": [OPEN, {"type": "integer"}, OPEN]}, {"b": 3}, {"b": "x"}, None),
        (OPEN | {"maxProperties": 1}, {"b": 3}, {"b": "x"}, "maxProperties"),
    ],
)  # fmt: skip
def test_what_can_be_enforced_is_and_the_rest_is_named(schema: Any, good: Any, bad: Any, left_out: str | None) -> None:
    assert accepts(schema, good)
    assert not accepts(schema, bad)
    told = followable(schema, "it").left_out
    assert (left_out in told[0]) if left_out else not told


@pytest.mark.parametrize(
    "schema", [{"type": "text"}, {"$ref": "#/$defs/x"}, {"$ref": "https://example.com"}, {"$ref": 3}, [], "x"]
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="it "):
        followable(schema, "it")


def test_what_is_not_enforced_is_told_in_a_header_and_a_grammar_in_our_words() -> None:
    """An engine that writes JSON, which is all that it does, follows a form."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": form, "max_tokens": 1}
    with running(answer="[") as server:
        with server.open("/v1/chat/completions", json.dumps(body).encode()) as response:
            assert "response_format: uniqueItems is not enforced" in response.headers["Warning"]
        bad = {"type": "string", "pattern": "(((("}
        form["json_schema"]["schema"] = bad  # type: ignore[index]
        status, told = server.post("/v1/chat/completions", body)
        assert status == 400
        assert "not a regular expression" in told["error"]["message"]
        assert "parse" not in told["error"]["message"]


def test_anthropics_schema_is_followed(server: Running) -> None:
    wanted: Any = {"format": {"type": "json_schema", "schema": OPEN}, "effort": "low"}
    status, body = server.post(
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "output_config": wanted},
    )
    assert status == 400  # the synthetic engine follows nothing, which is how we know that it was told
    assert "cannot be followed" in body["error"]["message"]
    grammar = server.answers[-1].grammar
    assert grammar is not None
    assert json.dumps(OPEN["properties"]) in grammar
    del wanted["format"]
    anthropic_client(server).messages.create(
        model="fake", max_tokens=9, messages=[{"role": "user", "content": "Hi"}], output_config=wanted
    )
