"""Prefix caching does not change an answer: on the CPU target, with a small model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from monolane.engine.constraint import Constraint
from monolane.engine.session import Session
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target, Token
from random_models import CASES, random_model

MODEL = random_model(CASES[3])  # the smallest
VOCAB = MODEL.config.vocab
DRAWN = Sampling(temperature=0.8, top_p=0.9, seed=7)
WITH_PENALTIES = Sampling(
    temperature=0.9,
    top_k=20,
    seed=3,
    repetition_penalty=1.3,
    presence_penalty=0.37,
    frequency_penalty=0.21,
    logit_bias=((5, 2.5), (6, -1.0)),
)


def answered(session: Session, tokens: list[int], sampling: Sampling, constraint: Constraint | None = None):  # type: ignore[no-untyped-def]
    request = Request(tokens, 0, 24, frozenset(), sampling, logprobs=3)
    with session.generate(request, constraint) as generation:
        made: list[Token] = [token for batch in generation for token in batch]
    return [(token.id, token.logprob, token.top) for token in made], generation.cached, generation.finish


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    opened = open_target(MODEL.config, MODEL.weights, device="cpu", workers=2, context=300)
    assert opened.caches > 3
    yield opened
    opened.close()


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN, WITH_PENALTIES])
def test_several_conversations_with_and_without_reuse(target: Target, sampling: Sampling) -> None:
    """Three talks in turn, of which two begin alike; each turn is also computed from nothing."""
    session = Session(target)
    beginnings = [MODEL.tokens[:70], MODEL.tokens[:40] + MODEL.tokens[100:105], MODEL.tokens[110:150]]
    talks = [list(beginning) for beginning in beginnings]
    reused = []
    for turn in range(3):
        for index, talk in enumerate(talks):
            again, cached, _ = answered(session, talk, sampling)
            anew, nothing, _ = answered(Session(target_without_memory(target)), talk, sampling)
            assert again == anew
            assert nothing == 0
            reused.append(cached)
            talk += [token for token, *_ in again] + MODEL.tokens[turn : turn + index + 2]
    assert reused[:3] == [0, 40, 0]  # the second begins like the first, whose cache is copied
    assert all(cached >= len(beginnings[index % 3]) for index, cached in enumerate(reused[3:]))


def target_without_memory(target: Target) -> Target:
    """The same target through its last cache alone, so that the caches of the talks stay as they are."""

    class LastCache:
        caches = 1

        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def run(self, request: Request):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return target.run(replace(request, cache=target.caches - 1))

    return LastCache()  # type: ignore[return-value]


class Allowing:
    """Allows what it is told to, for so many tokens."""

    def __init__(self, allowed: NDArray[np.bool_], length: int = 1000) -> None:
        self._allowed = allowed
        self._left = length
        self.accepted: list[int] = []

    def allowed(self) -> NDArray[np.bool_]:
        return self._allowed & (len(self.accepted) < self._left)

    def accept(self, token: int) -> None:
        assert self._allowed[token]
        self.accepted.append(token)


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN, WITH_PENALTIES])
def test_a_constraint_that_allows_everything_changes_nothing(target: Target, sampling: Sampling) -> None:
    """Token by token, through the cache and with penalties turned into biases: bit for bit the same."""
    free, *_ = answered(Session(target), MODEL.tokens[:33], sampling)
    constrained, _, finish = answered(Session(target), MODEL.tokens[:33], sampling, Allowing(np.ones(VOCAB, bool)))
    assert constrained == free
    assert finish is Finish.LENGTH


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN, WITH_PENALTIES])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_only_what_the_constraint_allows_comes(target: Target, sampling: Sampling, share: float) -> None:
    allowed = np.random.default_rng(5).random(VOCAB) < share
    constraint = Allowing(allowed, length=10)
    tokens, _, finish = answered(Session(target), MODEL.tokens[:33], sampling, constraint)
    assert [token for token, *_ in tokens] == constraint.accepted
    assert len(constraint.accepted) == 10
    assert finish is Finish.STOP  # nothing more is allowed


def test_a_constraint_that_is_complete_at_once(target: Target) -> None:
    session = Session(target)
    tokens, _, finish = answered(session, MODEL.tokens[:5], Sampling(), Allowing(np.zeros(VOCAB, bool)))
    assert (tokens, finish) == ([], Finish.STOP)
    assert len(answered(session, MODEL.tokens[:6], Sampling())[0]) == 24


def test_a_constrained_answer_is_aborted_between_its_tokens(target: Target) -> None:
    session = Session(target)
    request = Request(MODEL.tokens[:9], 0, 200, frozenset(), Sampling())
    with session.generate(request, Allowing(np.ones(VOCAB, bool))) as generation:
        batches = iter(generation)
        next(batches)
        generation.abort()
        assert len(list(batches)) <= 1
    assert generation.finish is Finish.ABORT
    complete, *_ = answered(session, MODEL.tokens[:9], Sampling())
    assert [token for token, *_ in complete][: len(generation.made)] == generation.made
