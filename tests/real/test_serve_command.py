"""``monolane serve`` with the real model, and a client of OpenAI's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import openai
import pytest
from command import COMMAND, environment

from monolane import LLM, SamplingParams

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str

    def health(self) -> tuple[int, str]:
        try:
            with urlopen(f"{self.url}/health", timeout=20) as response:
                return response.status, json.load(response)["status"]
        except HTTPError as refusal:
            return refusal.code, json.load(refusal)["status"]

    def wait(self) -> None:
        """Until the model has loaded."""
        while self.health() != (200, "ok"):
            assert self.health() in ((503, "loading"), (200, "ok"))
            assert self.process.poll() is None
            time.sleep(0.05)


@pytest.fixture
def served(default_model_path: Path) -> Iterator[Served]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0"],
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
        yield Served(process, found[1])
    finally:
        process.kill()
        process.communicate()


def test_a_conversation_with_the_server(served: Served, default_model_path: Path) -> None:
    served.wait()
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=60, max_retries=0)
    assert [model.id for model in client.models.list()] == ["smollm2-135m"]
    ask: dict[str, Any] = {"model": "smollm2-135m", "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Paris" in text
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    with LLM(default_model_path) as llm:
        assert llm.chat(QUESTION, SamplingParams(max_tokens=40)).text == text
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": "word " * 9000}]})
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=20) in (0, 130)


def test_ctrl_c_in_the_middle_of_an_answer(served: Served) -> None:
    served.wait()
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=60, max_retries=0)
    long = client.chat.completions.create(
        model="smollm2-135m", messages=QUESTION, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(long))
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=20) in (0, 130)
