"""The kernel's sampler chooses what the reference chooses, token for token, logprob for logprob."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samplings, st.sampled_from([None, 0, 5, 20]))
def test_the_kernel_samples_like_the_reference(target: Target, sampling: Sampling, logprobs: int | None) -> None:
    tokens, finish = run(target, Request(PROMPT, 0, 8, frozenset(), sampling, logprobs))
    assert finish is Finish.LENGTH
    assert len(tokens) == 8
    sequence = [*PROMPT, *(token.id for token in tokens)]
    logits = target.logits(sequence)
    reference = Sampler(sampling, CASE.vocab, np.array(PROMPT), logprobs)
    for made, token in enumerate(tokens):
        position = len(PROMPT) + made
        choice = reference.choose(logits[position - 1], position)
        assert token.id == choice.token
        if logprobs is None:
            assert token.logprob is None
        else:
            assert token.logprob == choice.logprob(choice.distance)
            assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)


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
