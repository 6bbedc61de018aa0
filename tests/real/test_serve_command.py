"""``monolane serve`` with the real model, and the clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import anthropic
import openai
import pytest
from command import COMMAND, environment

from monolane import LLM, SamplingParams

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
ASK: dict[str, Any] = {"model": "smollm2-135m", "messages": QUESTION, "temperature": 0, "max_tokens": 40}


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=60, max_retries=0)

    def health(self) -> tuple[int, str]:
        try:
            with urlopen(f"{self.url}/health", timeout=20) as response:
                return response.status, json.load(response)["status"]
        except HTTPError as refusal:
            return refusal.code, json.load(refusal)["status"]

    def wait(self) -> None:
        """Until the model has loaded."""
        while (health := self.health()) != (200, "ok"):
            assert health in ((503, "loading"), (503, "restarting"))
            assert self.process.poll() is None
            time.sleep(0.05)


@contextmanager
def serve() -> Iterator[Served]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "smollm2-135m", "--port", "0"],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"listening on (http://127\.0\.0\.1:\d+)", said)
        assert found, said
        served = Served(process, found[1])
        served.wait()
        yield served
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(default_model_path: Path) -> Iterator[Served]:
    with serve() as served:
        yield served


@pytest.fixture(scope="module")
def expected(default_model_path: Path) -> str:
    with LLM(default_model_path) as llm:
        return llm.chat(QUESTION, SamplingParams(max_tokens=40)).text


def test_a_conversation_with_the_server(served: Served, expected: str) -> None:
    client = served.client
    assert [model.id for model in client.models.list()] == ["smollm2-135m"]
    whole = client.chat.completions.create(**ASK)
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Paris" in text
    assert text == whole.choices[0].message.content == expected
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(**ASK | {"messages": [{"role": "user", "content": "word " * 9000}]})


def test_all_ways_to_ask_give_the_same_answer(served: Served, expected: str) -> None:
    answer = served.client.responses.create(
        model="smollm2-135m", input=QUESTION[0]["content"], temperature=0, max_output_tokens=40
    )
    assert answer.output_text == expected
    client = anthropic.Anthropic(base_url=served.url, api_key="none", timeout=60, max_retries=0)
    extra = {"temperature": 0}
    with client.messages.stream(model="smollm2-135m", messages=QUESTION, max_tokens=40, extra_body=extra) as stream:
        assert "".join(stream.text_stream) == expected


def test_a_conversation_that_goes_on_is_not_computed_again(served: Served) -> None:
    first = served.client.chat.completions.create(**ASK)
    more = [
        *QUESTION,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And of Spain?"},
    ]
    second = served.client.chat.completions.create(**ASK | {"messages": more})
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_an_answer_that_must_be_json_is(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "river": {"enum": ["Seine", "Thames"]}},
        "required": ["city", "river"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}}
    answer = served.client.chat.completions.create(**ASK | {"max_tokens": 80}, response_format=form)
    assert answer.choices[0].finish_reason == "stop"
    told = json.loads(answer.choices[0].message.content or "")
    assert set(told) == {"city", "river"}
    assert told["river"] in ("Seine", "Thames")


def test_kill_9_of_the_engine_is_told_and_survived(served: Served, expected: str) -> None:
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    long = served.client.chat.completions.create(
        **ASK | {"max_tokens": 4000}, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(long))
    for child in children.read_text().split():
        if b"monolane.engine.core" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="killed"):
        list(long)
    served.wait()
    assert served.client.chat.completions.create(**ASK).choices[0].message.content == expected


def test_ctrl_c_in_the_middle_of_an_answer(default_model_path: Path) -> None:
    with serve() as served:
        long = served.client.chat.completions.create(
            **ASK | {"max_tokens": 4000}, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long))
        served.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="stopped"):
            list(long)
        assert served.process.wait(timeout=20) in (0, 130)
