"""A malicious chat template cannot use up memory: large values are refused before they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import monolane
from monolane.model.chat import ChatTemplate

LIMIT = 640 << 20  # bytes that a process gets besides what it has after its imports

# Each made gigabytes at one stroke, or would have.
LARGE = {"ascii": "{% set x = 'a b,\\n' * 20000000 %}", "wide": "{% set x = '\U0001f600 ,\\n&' * 8000000 %}"}
AT_ONE_STROKE = [
    "{{ ['a'] * 250000000 }}",
    "{{ 250000000 * ['a'] }}",
    "{{ ('a',) * 250000000 }}",
    "{{ [['a', 'b']] * 100000000 }}",
    "{{ 'a' * 250000000 ~ 'a' * 250000000 }}",
    "{{ '\U0001f600' * 250000000 }}",
    "{{ 'a' * 10**9 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a\\n' | indent(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ range(1000000000) | list }}",
    "{{ strftime_now('%9999d' * 100000) }}",
    "{{ [dict(a=1)] * 99999 | sort(attribute='" + "a," * 9999 + "a') }}",
    "{% autoescape true %}{{ '&' * 200000000 }}{% endautoescape %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='é') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x={}) %}{% for i in range(40) %}{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{{ a }}" * 100_000,
    "{{ " + "a ~ " * 200_000 + "a }}",
]
OF_A_LARGE_TEXT = [
    "{{ " + " ~ ".join(["x"] * 50) + " }}",
    "{{ " + " + ".join(["x"] * 50) + " }}",
    "{{ x | list }}",
    "{{ x | sort }}",
    "{{ x | unique | list }}",
    "{{ x | title }}",
    "{{ x | join('--------') }}",
    "{{ '--------'.join(x) }}",
    "{{ x.split() }}",
    "{{ x.split(',') }}",
    "{{ x.rsplit(sep=' ') }}",
    "{{ x.splitlines() }}",
    "{{ x.replace('', 'abc') }}",
    "{{ x | replace(',', '\U0001f600' * 9) }}",
    "{{ (x | replace('a', '&')) | e }}",
    "{{ [x.replace(',', '\\x00')] }}",
    "{{ x.replace(',', '\\x00') | tojson(ensure_ascii=true) }}",
    "{{ (x | safe) + x.replace(',', '&') }}",
    "".join(f"{{% set x{i} = x[1:] %}}" for i in range(50)),
    "".join(f"{{% set x{i} = x.upper() %}}" for i in range(50)),
    "".join(f"{{% set x{i} = x | lower %}}" for i in range(50)),
]

CHILD = """
import gc, json, re, resource, sys
from pathlib import Path
from monolane.model import template_meter
from monolane.model.chat import ChatTemplate
template_meter.MAX_SECONDS = 1.0
message = [{"role": "user", "content": "Hi"}]
ChatTemplate("{{ messages | tojson }}", {}).render(message)
size = int(re.search(r"VmSize:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]),) * 2)
for source in json.load(sys.stdin):
    try:
        print(json.dumps(f"rendered {len(ChatTemplate(source, {}).render(message))}"))
    except BaseException as error:
        print(json.dumps(f"{type(error).__name__}: {error}"[:200]))
    gc.collect()  # the frames of the last one
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="knows its size from /proc")
@pytest.mark.parametrize("start", ["", *LARGE.values()], ids=["at one stroke", *LARGE])
def test_templates_are_stopped_before_they_take_the_memory(start: str) -> None:
    sources = [start + source for source in (OF_A_LARGE_TEXT if start else AT_ONE_STROKE)]
    environment = os.environ | {"PYTHONPATH": str(Path(monolane.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(LIMIT)],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=300,
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    refused = ("out of bounds", "must not", "No filter named", "UndefinedError", "OverflowError", "TypeError")
    wrong = {
        source[-100:]: verdict
        for source, verdict in zip(sources, verdicts, strict=True)
        if not verdict.startswith("ModelFileError") or not any(words in verdict for words in refused)
    }
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("letter", ["a", "語"])
def test_a_conversation_that_fills_a_large_context_is_rendered(letter: str) -> None:
    """A million letters, by a template that copies every one of them several times."""
    source = (
        "{% for m in messages %}{% set text = m.content | trim %}{% if text.split('</think>') | length > 1 %}"
        "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        "{{ '<|' + m.role + '|>' + text + '<|end|>' ~ '\\n' }}{% endfor %}{{ messages[1:] | tojson | length }}"
    )
    messages = [{"role": "user", "content": letter * 1000}] * 1000
    assert ChatTemplate(source, {}).render(messages).count(letter * 1000) == 1000
