"""Chat templates are rendered as transformers renders them, and malicious ones do no harm."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from monolane.errors import ModelFileError, UsageError
from monolane.model import template_meter, template_sandbox
from monolane.model.chat import ChatTemplate, Rendering, chat_template_from_folder
from monolane.model.data_file import DataFile
from monolane.model.gguf_file import read_gguf

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "Hi <b>é</b> & 'you'"}]
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    *USER,
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Weather in Łódź?\n"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Łódź", "days": 2}}}
WITH_TOOLS = [
    *CONVERSATION,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "<now> & 'here'", "parameters": {"type": "object"}},
    }
]

CHATML = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message['content'] | trim ~ '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
ALTERNATING = """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}{% set system = '<<SYS>>' + messages[0]['content'].strip() + '<</SYS>>' %}
{%- else %}
    {%- set rest = messages %}{% set system = '' %}
{%- endif %}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + m['content'] + ' [/INST]' }}
    {%- elif m['role'] == 'assistant' %}
        {{- ' ' ~ m.content ~ ' ' ~ eos_token }}
    {%- endif %}
{%- endfor -%}
"""
TOOL_USING = """
{%- macro show(tool, depth=2) -%}
    {{ tool | tojson(indent=depth) }}/{{ tool.function | tojson }}/{{ tool.function.keys() | list | join(', ') }}
{%- endmacro %}
{%- set ns = namespace(calls=0, seen=[]) %}
{%- for tool in tools or [] %}{{ show(tool) }}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + [message.role] %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set ns.calls = ns.calls + 1 %}
            {%- for key, value in call.function.arguments | items %}
{{ loop.index }}/{{ loop.length }} {{ key }}={{ value | string | upper }}{{ ',' if not loop.last }}
            {%- endfor %}
            {{- call.function.arguments | tojson }}
        {%- endfor %}
    {%- else %}
        {%- generation %}{{ message.content.replace('<b>', '*').split('</b>')[-1] }}{% endgeneration %}
    {%- endif %}
    {%- if ns.seen | length > 50 %}{% break %}{% endif %}
{%- endfor %}
{{ ns.calls }} {{ ns.seen | unique | sort | join('|') }} {{ messages | map(attribute='role') | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ undefined_thing }} {{ 'ab' * 2 }}
{%- call(x) wrap('(') %}{{ x }}{% endcall %}
{%- filter upper %}done{% endfilter %}
""".replace("{%- set ns =", "{%- macro wrap(p) %}{{ p }}{{ caller(1) }}){% endmacro %}{% set ns =", 1)


def render_with_transformers(source: str, messages: Any, **options: Any) -> str:
    backend = PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()), **SPECIAL)
    return backend.apply_chat_template(messages, chat_template=source, tokenize=False, **options)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", [USER, CONVERSATION, WITH_TOOLS], ids=["one", "several", "tools"])
@pytest.mark.parametrize("source", [CHATML, ALTERNATING, TOOL_USING], ids=["chatml", "alternating", "tools"])
def test_renders_like_transformers(source: str, messages: Any, add_generation_prompt: bool) -> None:
    tools = TOOLS if messages is WITH_TOOLS else None
    how = Rendering(add_generation_prompt, continue_final_message=False)
    if source is ALTERNATING and messages is WITH_TOOLS:
        with pytest.raises(UsageError, match="must alternate"):
            ChatTemplate(source, SPECIAL).render(messages, tools=tools, how=how)
    else:
        rendered = ChatTemplate(source, SPECIAL).render(messages, tools=tools, how=how)
        options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        assert rendered == render_with_transformers(source, messages, **options)


@pytest.mark.parametrize("source", [CHATML, ALTERNATING, TOOL_USING], ids=["chatml", "alternating", "tools"])
def test_a_last_message_of_the_assistant_is_left_open_like_in_transformers(source: str) -> None:
    messages = [*USER, {"role": "assistant", "content": "The capital of France is"}]
    expected = render_with_transformers(source, messages, continue_final_message=True)
    assert ChatTemplate(source, SPECIAL).render(messages) == expected
    assert expected.endswith("France is")


def test_a_last_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(UsageError, match="cannot be continued"):
        ChatTemplate("{{ messages[0].content }}", {}).render([*USER, {"role": "assistant", "content": "So"}])


def test_variables_of_a_template_can_be_set_but_not_those_that_have_a_meaning() -> None:
    template = ChatTemplate("{{ 'no thoughts' if enable_thinking is false }}", {})
    assert template.render(USER, how=Rendering(variables={"enable_thinking": False})) == "no thoughts"
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(UsageError, match=name):
            template.render(USER, how=Rendering(variables={name: []}))


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments|tojson }}", {})
    for arguments, shown in (('{"a": 1}', '{"a": 1}'), ("Paris {", '"Paris {"'), ("", "{}")):
        call = {"function": {"name": "f", "arguments": arguments}}
        assert template.render([{"role": "assistant", "tool_calls": [call]}]) == shown


def test_default_model_renders_like_transformers(default_model_path: Path) -> None:
    with DataFile(default_model_path) as file:
        source = read_gguf(file).metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    template = ChatTemplate(source, {})
    for messages in (USER, CONVERSATION):
        expected = render_with_transformers(source, messages, add_generation_prompt=True)
        assert template.render(messages) == expected
        assert expected.endswith("<|im_start|>assistant\n")


def test_date_is_todays() -> None:
    before = datetime.now().strftime("%Y")
    rendered = ChatTemplate("{{ strftime_now('%Y') }}", {}).render(USER)
    assert before <= rendered <= datetime.now().strftime("%Y")


def test_clients_forms_become_what_templates_know() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}={{ m.content }}={{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}"
    )
    sent = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [sent]},
        {"role": "user", "content": "", "tool_calls": None},
    ]
    expected = 'system=Be brief=;assistant==[{"function": {"name": "f", "arguments": {"a": 1}}}];user==;'
    assert ChatTemplate(source, {}).render(messages) == expected
    assert sent["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        ([*USER, "hello"], r"messages\[1\] is not an object"),
        ([{"content": "x"}], r"messages\[0\]\.role is None"),
        ([{"role": "wizard", "content": "x"}], r"messages\[0\]\.role is 'wizard'"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 7}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\] is not a text part"),
        ([{"role": "user", "content": "x", "name": 3}], r"messages\[0\]\.name"),
        ([{"role": "assistant", "tool_calls": "x"}], r"messages\[0\]\.tool_calls is not a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\] has no function"),
        ([{"role": "assistant", "tool_calls": [{"function": object()}]}], "not plain JSON"),
    ],
)
def test_bad_messages_are_refused_by_name(messages: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        ChatTemplate(CHATML, SPECIAL).render(messages)
    assert error.value.hint


def test_tools_must_be_plain_data() -> None:
    with pytest.raises(UsageError, match="tools is not plain JSON"):
        ChatTemplate(CHATML, SPECIAL).render(USER, tools=[{"f": print}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}", "broken in line 1"),
        ("a\n\n{{ 1 + }}", "broken in line 3"),
        ("{{ x | no_such_filter }}", "no_such_filter"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("{{ messages[0].nothing.deeper }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("x" * (template_sandbox.MAX_SOURCE + 1), "out of bounds"),
    ],
)
def test_broken_templates_are_model_file_errors(source: str, message: str) -> None:
    template = ChatTemplate(source, {})  # only chatting is in its way
    with pytest.raises(ModelFileError, match=message) as error:
        template.render(USER)
    assert error.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "''['__class__']",
        "'' | attr('__class__')",
        "messages.__class__.__base__.__subclasses__()",
        "raise_exception.__globals__",
        "strftime_now.__globals__",
        "namespace.__init__.__globals__",
        "namespace(__class__=1)",
        "self.__init__",
        "'{0.__class__}'.format(1)",
        "messages.append(1)",
        "messages[0].update({'role': 'x'})",
        "messages[0].clear()",
        "messages.pop()",
    ],
)
def test_sandbox_holds(expression: str) -> None:
    messages = [dict(USER[0])]
    with pytest.raises(ModelFileError, match=r"must not|failed"):
        # An attribute that is out of reach is undefined: nothing is printed, but using it fails.
        ChatTemplate("{{ (" + expression + ").anything.at_all }}", {}).render(messages)
    assert messages == USER


NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
GROW = "{% set ns = namespace(x=START) %}{% for i in range(200) %}{% set ns.x = NEXT %}{% endfor %}{{ ns.x }}"


def grow(start: str, following: str) -> str:
    return GROW.replace("START", start).replace("NEXT", following)


@pytest.mark.parametrize(
    "source",
    [
        NESTED.replace("BODY", ""),
        NESTED.replace("BODY", "some text"),
        NESTED.replace("BODY", "{% set x = messages[0].content | upper %}"),
        "{% set x %}" + NESTED.replace("BODY", "y" * 1000) + "{% endset %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
        "{% for x in [[1, 2]] * 50 recursive %}{{ loop([[1, 2]] * 50) }}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ [1] | batch(999999999, 0) | list }}",
        "{{ lipsum(n=999999) }}",
        "{{ {'a': 1} | tojson(indent=999999999) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('b' * 1000000).join(range(99999) | map('string')) }}",
        "{{ range(99999) | join('b' * 1000000) }}",
        "{{ range(99999) | map('replace', '1', 'b' * 1000000) | list }}",
        grow("'ab'", "ns.x ~ ns.x"),
        grow("'ab'", "ns.x + ns.x"),
        grow("7", "ns.x * ns.x"),
        grow("[1]", "ns.x + ns.x"),
        grow("[1]", "[ns.x, ns.x]"),
        grow("{}", "{'a': ns.x, 'b': ns.x}"),
        grow("{}", "dict(a=ns.x, b=ns.x)"),
        grow("1", "(ns.x, ns.x)"),
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
    ],
)
def test_runaway_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MAX_SECONDS", 0.5)
    with pytest.raises(ModelFileError, match=r"out of bounds|must not|No filter named|is undefined|RecursionError"):
        ChatTemplate(source, {}).render(USER)


def test_long_but_honest_conversations_fit() -> None:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 100} for i in range(2000)]
    rendered = ChatTemplate(ALTERNATING, SPECIAL).render(messages)
    assert rendered.count("[INST]") == 1000


@pytest.mark.parametrize(
    ("config", "jinja_file", "expected"),
    [
        ({}, None, None),
        ({"chat_template": "A{{ bos_token }}{{ eos_token }}"}, None, "A<s></s>"),
        ({"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]}, None, "D"),
        ({"chat_template": [{"name": "rag", "template": "R"}]}, None, None),
        ({"chat_template": "A"}, "F{{ bos_token }}", "F<s>"),
    ],
)
def test_template_of_a_folder(
    tmp_path: Path, config: dict[str, object], jinja_file: str | None, expected: str | None
) -> None:
    if jinja_file is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja_file)
    config = {**config, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    template = chat_template_from_folder(tmp_path, json.loads(json.dumps(config)))
    assert (None if template is None else template.render(USER)) == expected


def test_template_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja"):
        chat_template_from_folder(tmp_path, {})
