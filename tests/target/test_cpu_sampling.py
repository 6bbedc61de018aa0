"""The sampler of the CPU kernel has the same tokens and logprobs as the reference sampler."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monolane.bench.measure.shapes import MadeUpWeights
from monolane.model.config import ModelConfig
from monolane.program.sample import Sampler, Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target, Token
from random_models import CASES, random_model

CASE = CASES[0]
PROMPT = random_model(CASE).tokens[:20]


@pytest.fixture(scope="module")
def target() -> Target:
    model = random_model(CASE)
    return open_target(model.config, model.weights, device="cpu", workers=2, context=128)


def run(target: Target, request: Request) -> tuple[list[Token], Finish | None]:
    tokens: list[Token] = []
    started = target.run(request)
    for batch in started:
        tokens += batch
    return tokens, started.finish


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0, 50.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 776, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.5, 4.0]),
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, 2.0]),
    logit_bias=st.sampled_from([(), ((5, 3.5), (700, -100.0)), ((776, 100.0),)]),
)


def check(target: Target, prompt: list[int], sampling: Sampling, logprobs: int | None) -> None:
    """The same tokens and logprobs as the reference makes from the same logits."""
    tokens, finish = run(target, Request(prompt, 0, 8, frozenset(), sampling, logprobs))
    assert finish is Finish.LENGTH
    assert len(tokens) == 8
    sequence = [*prompt, *(token.id for token in tokens)]
    logits = target.logits(sequence)
    reference = Sampler(sampling, logits.shape[1], np.array(prompt), logprobs)
    for made, token in enumerate(tokens):
        position = len(prompt) + made
        choice = reference.choose(logits[position - 1], position)
        assert token.id == choice.token
        if logprobs is None:
            assert token.logprob is None
        else:
            assert token.logprob == choice.logprob(choice.distance)
            assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samplings, st.sampled_from([None, 0, 5, 20]))
def test_the_kernel_samples_like_the_reference(target: Target, sampling: Sampling, logprobs: int | None) -> None:
    check(target, PROMPT, sampling, logprobs)


class Scaled(MadeUpWeights):
    """Logits so many times as far apart: 0 makes them equal, 1e-6 leaves a few different ones, 3000 clamps many."""

    def __init__(self, config: ModelConfig, scale: float) -> None:
        super().__init__(config)
        self.scale = scale

    def vector(self, name: str) -> NDArray[np.float32]:
        return super().vector(name) * np.float32(self.scale if name == "final_norm" else 1)


@cache
def scaled_target(vocab: int, workers: int, scale: float) -> Target:
    shape = replace(random_model(CASES[3]).config, vocab=vocab)
    return open_target(shape, Scaled(shape, scale), device="cpu", workers=workers, context=64)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(97, 5), (5003, 3)]),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.05, 1.0, 30.0, 3000.0]),
    samplings.map(lambda how: replace(how, logit_bias=how.logit_bias and ((5, 3.5), (96, -100.0)))),
    st.sampled_from([None, 0, 20]),
)
def test_flat_and_peaked_alike_with_any_share_of_any_vocabulary(
    shares: tuple[int, int], scale: float, sampling: Sampling, logprobs: int | None
) -> None:
    check(scaled_target(*shares, scale), [3, 14, 15, 92, 65, 35], sampling, logprobs)


@pytest.mark.parametrize("top_k", [1, 2, 2500, 5002])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 1e-12])
def test_of_equals_all_are_kept(top_k: int, top_p: float) -> None:
    target = scaled_target(5003, 3, 0.0)
    for seed in range(20):
        free = Sampling(temperature=1.0, seed=seed)
        narrowed = replace(free, top_k=top_k, top_p=top_p)
        (token,), _ = run(target, Request([1], 0, 1, frozenset(), narrowed))
        assert token.id == Sampler(free, 5003, np.array([1])).choose(np.zeros(5003, np.float32), 1).token
    # Logits of a few different values: the border is among equals, and some tokens are beyond it.
    check(scaled_target(5003, 3, 1e-6), [1], narrowed, 20)


def test_the_interpreter_makes_the_same_tokens(target: Target) -> None:
    model = random_model(CASE)
    oracle = open_target(model.config, model.weights, device="interpreter", workers=1, context=128)
    request = Request(PROMPT, 0, 12, frozenset(), Sampling(temperature=0.8, top_p=0.9, seed=11), 2)
    ours, theirs = run(target, request)[0], run(oracle, request)[0]
    assert [token.id for token in ours] == [token.id for token in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=0.05)


def test_a_stop_token_ends_the_run_and_is_its_last_token(target: Target) -> None:
    request = Request(PROMPT, 0, 20, frozenset(), Sampling())
    free, _ = run(target, request)
    stopped, finish = run(target, replace(request, stop_tokens=frozenset({free[6].id, 0})))
    ids = [token.id for token in free]
    assert [token.id for token in stopped] == ids[: ids.index(free[6].id) + 1]
    assert finish is Finish.STOP


def test_what_is_cached_is_not_computed_and_not_different(target: Target) -> None:
    request = Request(PROMPT, 0, 10, frozenset(), Sampling(temperature=1.0, seed=5))
    first, _ = run(target, request)
    longer = [*PROMPT, *(token.id for token in first[:6])]
    rest, _ = run(target, replace(request, tokens=longer, cached=len(PROMPT) + 5, max_tokens=4))
    assert [token.id for token in rest] == [token.id for token in first[6:]]
