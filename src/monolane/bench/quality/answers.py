"""From a problem to a program: the question that a chat model gets, and the code in its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from monolane.bench.quality.problems import Problem
from monolane.engine.llm import LLM
from monolane.engine.params import SamplingParams

QUESTION = (
    "Please complete the following Python function. Answer with one Markdown code block that contains the whole "
    "function, including its imports.\n```python\n{prompt}\n```"
)
_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """``finish``: complete, when the code block was closed; otherwise why the engine ended it."""

    text: str
    tokens: int
    finish: str


def ask(llm: LLM, problem: Problem, max_tokens: int) -> Answer:
    """Decode greedily until the code block that defines the function is closed, or the model has ended its answer.
    What would follow the code block is an explanation, which no test looks at."""
    messages = [{"role": "user", "content": QUESTION.format(prompt=problem.prompt.strip())}]
    stream = llm.chat(messages, SamplingParams(max_tokens=max_tokens), stream=True)
    text, complete = "", False
    for delta in stream:
        text += delta.text
        if not complete and any(closed for _, closed in _definitions(text, problem)):
            complete = True
            stream.abort()
    result = stream.result
    return Answer(text, len(result.token_ids), "complete" if complete else result.finish_reason)


def program(answer: str, problem: Problem) -> str | None:
    """The program that tests an answer; None where there is no code in it.

    The problem's own beginning stands in front, because an answer may leave out imports and helper functions. It is
    complete Python by itself, as a docstring is a body, and the answer defines the function again. A code block without
    the function is taken for its body.
    """
    definition = next((code for code, _ in _definitions(answer, problem)), None)
    block = definition or next((code for code, _ in _blocks(answer)), None)
    if block is None and _defines(answer, problem):
        block = answer
    if block is None or not block.strip():
        return None
    return f"{problem.prompt.rstrip()}\n\n{block}\n\n{problem.test}\n\ncheck({problem.entry_point})\n"


def _definitions(answer: str, problem: Problem) -> Iterator[tuple[str, bool]]:
    return ((code, closed) for code, closed in _blocks(answer) if _defines(code, problem))


def _blocks(answer: str) -> Iterator[tuple[str, bool]]:
    """The code blocks of an answer, and whether each is closed: only the last one may be open."""
    return ((found[1], bool(found[2])) for found in _BLOCK.finditer(answer))


def _defines(code: str, problem: Problem) -> bool:
    return re.search(rf"^[ \t]*(async )?def {re.escape(problem.entry_point)}\b", code, re.MULTILINE) is not None
