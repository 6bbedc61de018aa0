"""Runs the examples in the documents, unchanged."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PLAN = Path(__file__).parents[2] / "docs/plan.md"


@pytest.mark.usefixtures("default_model_path")
def test_the_example_of_the_plan_page() -> None:
    block = PLAN.read_text().split("```python\n")[1].split("```")[0]
    example = doctest.DocTestParser().get_doctest(block, {}, PLAN.name, str(PLAN), 0)
    assert len(example.examples) > 4
    assert doctest.DocTestRunner().run(example).failed == 0
