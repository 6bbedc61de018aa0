"""The commands that a new user types first, with the real model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import COMMAND, environment, monolane

from thorough import thorough

GENERATE = ("generate", "smollm2-135m", "--prompt", "The capital of France is", "--max-tokens", "12")


@pytest.mark.parametrize("how", [(), ("--temperature", "0.8", "--seed", "42")])
def test_generate_as_json_twice(how: tuple[str, ...], default_model_path: Path) -> None:
    first, second = (monolane(*GENERATE, *how, "--json") for _ in range(2))
    assert first.code == second.code == 0
    answer, again = json.loads(first.out), json.loads(second.out)  # one object, and nothing else
    assert len(answer["token_ids"]) == 12
    assert answer["finish_reason"] == "length"
    assert answer["timings"]["prompt_tokens"] == 5
    assert answer["timings"]["generated_tokens"] == 12
    assert (answer["text"], answer["token_ids"]) == (again["text"], again["token_ids"])
    if not how:
        assert answer["text"].startswith(" Paris")


def test_generate_writes_the_answer_to_stdout_and_the_speed_to_stderr(default_model_path: Path) -> None:
    plain, as_json = monolane(*GENERATE), monolane(*GENERATE, "--json")
    assert plain.code == 0
    assert plain.out.rstrip("\n") == json.loads(as_json.out)["text"]
    assert "tok/s" in plain.err


@thorough
def test_generate_in_the_interpreter(default_model_path: Path) -> None:
    words = (*GENERATE, "--max-tokens", "4", "--json")  # the interpreter takes a second for a token
    native, interpreted = (monolane(*words, "--device", device) for device in ("cpu", "interpreter"))
    assert interpreted.code == 0
    assert json.loads(interpreted.out)["token_ids"] == json.loads(native.out)["token_ids"]


def test_chat_through_a_pipe(default_model_path: Path) -> None:
    lines = "What is the capital of France?\nAnd of Italy?\n/exit\n"
    done = subprocess.run(
        [*COMMAND, "chat", "smollm2-135m", "--max-tokens", "40", "--temperature", "0"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0
    paris, rome = done.stdout.find("Paris"), done.stdout.find("Rome")
    assert 0 <= paris < rome
    assert done.stderr.count("tok/s") == 2


def test_pull_prints_the_path_of_a_model_that_is_there(default_model_path: Path) -> None:
    pulled = monolane("pull", "smollm2-135m")
    assert (pulled.code, pulled.out.strip()) == (0, str(default_model_path))


def test_models_tells_which_are_there(default_model_path: Path) -> None:
    listed = monolane("models")
    assert listed.code == 0
    (line,) = (line for line in listed.out.splitlines() if line.startswith("smollm2-135m"))
    assert "fetched" in line
    assert "98.4 MB" in line
    assert listed.out.count("(default here)") == 1


def test_inspect(default_model_path: Path, tmp_path: Path) -> None:
    shown = monolane("inspect", "smollm2-135m", "--workers", "3", folder=tmp_path)
    assert shown.code == 0
    assert "0-29" in shown.out  # 30 layers
    assert "49152 x 576" in shown.out
    assert sum(line.strip().startswith("tape ") for line in shown.out.splitlines()) == 3
    assert "balance" in shown.out
    (picture,) = tmp_path.iterdir()
    assert picture.suffix == ".svg"
    assert picture.read_text().startswith("<?xml")


def test_a_path_is_as_good_as_a_name(default_model_path: Path) -> None:
    by_path = monolane(GENERATE[0], default_model_path, *GENERATE[2:])
    assert by_path.out == monolane(*GENERATE).out
