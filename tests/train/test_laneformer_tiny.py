"""The trained Laneformer that comes with the package: it completes Python, and always the same Python."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from monolane import LLM, SamplingParams
from monolane.model.catalogue import CATALOGUE, BundledModel
from monolane.target import open_target
from monolane.train.laneformer import Laneformer

# Two tokens are nowhere nearly as likely after these, so that every machine continues them alike.
BEGINNINGS = (
    "def read_json(path):",
    "import numpy as np\n\n\ndef mean(values):",
    'def maximum(values):\n    """The largest of values."""',
)
TOKENS = 48
TOLERANCE = 5e-5  # of fp32 sums in another order
GREEDY = SamplingParams(max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("laneformer-tiny", device="cpu", workers=2, context=128) as llm:
        yield llm


@pytest.fixture(scope="module")
def answers(llm: LLM) -> list[tuple[int, ...]]:
    """The greedy tokens after each beginning."""
    return [llm.generate(beginning, GREEDY).token_ids for beginning in BEGINNINGS]


def test_its_lanes_run_together_unless_told_otherwise(llm: LLM) -> None:
    assert "8 lanes" in llm.target.name
    model = CATALOGUE["laneformer-tiny"]
    assert isinstance(model, BundledModel)
    assert model.size_bytes <= 25_000_000


@pytest.mark.parametrize("number", range(len(BEGINNINGS)))
def test_what_it_writes_is_python(llm: LLM, answers: list[tuple[int, ...]], number: int) -> None:
    text = llm.tokenizer.decode(answers[number])
    lines = text.removeprefix("\n").split("\n")[:-1]  # the last one may be cut
    body = list(takewhile(lambda line: not line or line.startswith("    "), lines))
    function = ast.parse("\n".join([BEGINNINGS[number], *body])).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert any(isinstance(statement, ast.Return) for statement in ast.walk(function))


def test_the_module_that_was_trained_writes_the_same(llm: LLM, answers: list[tuple[int, ...]]) -> None:
    module = Laneformer(llm.config).eval()
    weights = safetensors.torch.load_file(llm.model.path / "model.safetensors")
    left, unknown = module.load_state_dict(weights, strict=False)
    assert (left, unknown) == (["lm_head.weight"], [])  # tied: it is the embedding
    exact = {"device": "cpu", "workers": 2, "context": 128, "cache_format": "f32"}
    with closing(open_target(llm.config, llm.model.weights, **exact)) as target:
        for beginning, answer in zip(BEGINNINGS, answers, strict=True):
            tokens = [*llm.tokenizer.encode(beginning), *answer]
            with torch.no_grad():
                expected = module(torch.tensor([tokens]))[0].numpy()
            assert tuple(expected.argmax(-1)[-TOKENS - 1 : -1]) == answer
            np.testing.assert_allclose(target.logits(tokens), expected, atol=TOLERANCE * expected.std(), rtol=0)


@pytest.mark.parametrize(("workers", "placement"), [(1, "together"), (8, "together"), (2, "apart")])
def test_threads_and_processes_do_not_change_the_text(
    answers: list[tuple[int, ...]], workers: int, placement: str
) -> None:
    if placement == "apart" and sys.platform != "linux":
        pytest.skip("lanes apart share memory by descriptors of Linux")
    with LLM("laneformer-tiny", device="cpu", workers=workers, placement=placement, context=128) as other:
        assert [other.generate(beginning, GREEDY).token_ids for beginning in BEGINNINGS] == answers


def test_it_is_installed_with_the_package() -> None:
    """Every file beside the Python files belongs to the package's data, so that a wheel has it."""
    root = Path(__file__).parents[2]
    package = root / "src" / "monolane"
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["monolane"]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files <= packed
    assert CATALOGUE["laneformer-tiny"].folder / "model.safetensors" in packed
