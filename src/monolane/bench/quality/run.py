"""``python -m monolane.bench quality``: answers HumanEval's problems, runs the answers, and counts.

Answers are written down one by one, in the cache. A run that was interrupted goes on behind the last of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monolane.bench.quality import problems, sandbox
from monolane.bench.quality.answers import QUESTION, Answer, ask, program
from monolane.bench.quality.problems import Problem
from monolane.bench.report import record
from monolane.cache import cache_root, make_folder
from monolane.engine.llm import LLM

QUALITY = Path("benchmarks/quality")
# pass@1 of the same problems in percent, as the makers of a model report it, and where.
REPORTED = {
    "qwen2.5-coder-0.5b": (61.6, "bf16, Qwen2.5-Coder Technical Report, arXiv:2409.12186"),
    "qwen2.5-coder-1.5b": (70.7, "bf16, Qwen2.5-Coder Technical Report, arXiv:2409.12186"),
}

METHOD = (
    "HumanEval, pass@1 of one greedy answer to each problem: the model gets the problem in a message of its chat "
    "template with the default system prompt, and decodes until its code block is closed, at most max_tokens tokens; "
    "the problem's beginning, the code block and the problem's tests are run as one program, in a process of its own "
    "with limits on time and memory; it is passed where the tests come to their end without an exception"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """``problems``: only so many, the first ones; None: all."""

    model: str
    device: str = "auto"
    workers: int | None = None
    quantise: str | None = None
    max_tokens: int = 512
    problems: int | None = None
    out: Path = QUALITY
    keep: bool = False  # replace a result that git tracks


def run(options: Options, say: Say) -> dict[str, Any]:
    """Answer, run and count; the result is written below ``out``."""
    asked = problems.read()[: options.problems]
    with closing(LLM(options.model, device=options.device, workers=options.workers, quantise=options.quantise)) as llm:
        answers = _answered(llm, asked, options, say)
        result = judged(options, asked, answers, say) | _surroundings(llm)
    name = "-".join(
        filter(None, ("humaneval", Path(options.model).name, options.quantise, result["device"].split()[0]))
    )
    say(record.written(name, result, options.out, options.keep))
    return result


def summary(result: dict[str, Any]) -> str:
    """The result in one line."""
    errors = Counter(row["error"] for row in result["answers"].values() if row["error"])
    others = ", ".join(f"{error} {count}" for error, count in errors.most_common())
    reported = f"; its makers report {result['reported_percent']}%" if result["reported_percent"] else ""
    return (
        f"{result['model']} ({result['dtype']}) on {result['device']}: {result['passed']} of {result['problems']} "
        f"problems passed, {result['pass_at_1_percent']}%{reported}" + (f"\nothers: {others}" if others else "")
    )


def judged(options: Options, asked: Sequence[Problem], answers: Sequence[Answer], say: Say) -> dict[str, Any]:
    """What the tests make of the answers: the totals, and each problem."""
    rows: dict[str, dict[str, Any]] = {}
    isolated = True
    for problem, answer in zip(asked, answers, strict=True):
        code = program(answer.text, problem)
        outcome = sandbox.run(code) if code else sandbox.Outcome("no code", True)
        isolated = isolated and outcome.isolated
        rows[problem.name] = {
            "passed": outcome.error is None,
            "error": outcome.error,
            "tokens": answer.tokens,
            "finish": answer.finish,
        }
    if not isolated:
        say("warning: this system grants no namespaces; the programs ran with limits, but with network and files")
    passed = sum(row["passed"] for row in rows.values())
    reported = REPORTED.get(options.model) if options.problems is None else None  # theirs is of all problems
    return {
        "benchmark": "quality",
        "model": Path(options.model).name,
        "problems": len(rows),
        "passed": passed,
        "pass_at_1_percent": round(100 * passed / len(rows), 1),
        "reported_percent": reported[0] if reported else None,
        "reported_by": reported[1] if reported else None,
        "max_tokens": options.max_tokens,
        "question": QUESTION,
        "limits": asdict(sandbox.Limits()),
        "isolated": isolated,
        "method": METHOD,
        "answers": rows,
    }


def _surroundings(llm: LLM) -> dict[str, Any]:
    return {
        "dtype": llm.model.dtype,
        "device": llm.target.name,
        "machine": record.machine(),
        "versions": record.versions("numpy", problems.PACKAGE),
    }


def _answered(llm: LLM, asked: Sequence[Problem], options: Options, say: Say) -> list[Answer]:
    """The answers to all problems: those that are in the file already, then the others."""
    path = answers_file(options, llm.target.name)
    known = {row.pop("problem"): Answer(**row) for row in _lines(path)}
    if known:
        say(f"{len(known)} answers are in {path} already")
    with path.open("a") as file:
        for number, problem in enumerate(asked, 1):
            if problem.name in known:
                continue
            answer = known[problem.name] = ask(llm, problem, options.max_tokens)
            file.write(json.dumps({"problem": problem.name, **asdict(answer)}) + "\n")
            file.flush()
            say(f"{problem.name}: {answer.tokens} tokens ({number} of {len(asked)})")
    return [known[problem.name] for problem in asked]


def answers_file(options: Options, device: str) -> Path:
    """Where answers are kept, apart by everything that decides them."""
    decides = (options.model, options.quantise, device, options.max_tokens, QUESTION)
    digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    return make_folder(cache_root() / "quality") / f"{Path(options.model).name}-{digest}.jsonl"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file. A last one that a run was interrupted in is taken off."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]
