"""A real model's answer does not depend on the number of workers, the run, the target, or how a prompt is divided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_text import CODE, PROSE

from monolane import LLM, SamplingParams
from monolane.engine.session import Session
from monolane.program.sample import Sampling
from monolane.target.base import Request, Target, Token
from thorough import seldom, thorough

LENGTHS = (1, 15, 16, 17, 140)  # of prompts: around the border of a pass, and beyond one split of the context
NEXT = 8  # tokens compared after each prompt


@pytest.fixture(scope="module")
def llm(default_model_path: Path) -> Iterator[LLM]:
    with LLM(default_model_path, workers=1, context=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(default_model_path: Path) -> Iterator[LLM]:
    with LLM(default_model_path, device="interpreter", context=64) as llm:
        yield llm


def test_the_number_of_workers_does_not_change_the_answer(default_model_path: Path, llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    expected = llm.generate(PROSE[:300], params).token_ids
    assert len(expected) == 16
    for workers in (2, 3):
        with LLM(default_model_path, workers=workers, context=1024) as another:
            assert another.generate(PROSE[:300], params).token_ids == expected


@pytest.mark.parametrize("placement", [seldom("together"), seldom("apart")])
def test_nor_do_lanes(default_model_path: Path, llm: LLM, placement: str) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = llm.generate(PROSE[:300], params).token_ids
    with LLM(default_model_path, lanes=2, placement=placement, context=1024) as divided:
        assert divided.generate(PROSE[:300], params).token_ids == expected


@pytest.mark.parametrize("temperature", [0.9, seldom(0.0)])
def test_the_same_request_twice_is_the_same_bit_for_bit(llm: LLM, temperature: float) -> None:
    params = SamplingParams(max_tokens=16, temperature=temperature, seed=7, logprobs=5, ignore_eos=True)
    first = llm.generate(PROSE[:300], params)
    llm.generate(CODE, params)  # another conversation in between
    reused = llm.generate(PROSE[:300], params)
    llm._session = Session(llm.target)  # forgets what is in the caches, so that everything is computed again
    again = llm.generate(PROSE[:300], params)
    assert (reused.timings.cached_tokens, again.timings.cached_tokens) == (first.prompt_tokens - 1, 0)
    for answer in (reused, again):
        assert answer.token_ids == first.token_ids
        assert answer.logprobs == first.logprobs


def test_another_seed_is_another_answer(llm: LLM) -> None:
    answers = {
        llm.generate("Once upon a time", SamplingParams(max_tokens=24, temperature=0.9, seed=seed)).token_ids
        for seed in (1, 2, 3)
    }
    assert len(answers) == 3


@pytest.mark.parametrize(("temperature", "seed"), [seldom(0.0, 0), seldom(0.8, 1), seldom(0.8, 2)])
def test_the_interpreter_chooses_the_same_tokens(llm: LLM, oracle: LLM, temperature: float, seed: int) -> None:
    params = SamplingParams(max_tokens=6, temperature=temperature, top_p=0.9, seed=seed)
    prompt = "The three primary colours are red,"
    assert oracle.generate(prompt, params).token_ids == llm.generate(prompt, params).token_ids


@thorough
def test_a_prompt_read_in_passes_is_the_same_as_one_read_token_by_token(llm: LLM) -> None:
    tokens = llm.tokenizer.encode(PROSE)[: max(LENGTHS)]
    assert len(tokens) == max(LENGTHS)
    for length in range(1, len(tokens) + 1):
        # Only the last token is new to the cache: those before came one by one.
        stepwise = run(llm.target, tokens[:length], length - 1, NEXT if length in LENGTHS else 1)
        if length in LENGTHS:
            whole = run(llm.target, tokens[:length], 0, NEXT)
            assert facts(stepwise) == facts(whole), f"after {length} tokens"


def run(target: Target, tokens: list[int], cached: int, max_tokens: int) -> list[Token]:
    request = Request(tokens, cached, max_tokens, frozenset(), Sampling(), logprobs=3)
    return [token for batch in target.run(request) for token in batch]


def facts(tokens: list[Token]) -> list[tuple[object, ...]]:
    """All of a token but its time."""
    return [(token.id, token.logprob, token.top) for token in tokens]
