"""Sampling on a GPU with a large vocabulary gives the token that the reference chooses from the kernel's logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from devices import chosen_from, dry, on_the_gpu, opened, run

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.program.sample import Sampler, Sampling
from monolane.target.base import Finish, Request, Target

pytestmark = on_the_gpu

# The very config of test_cuda_shapes.py: one kernel to compile.
CONFIG = dry(replace(SHAPES["llama-3.2-1b"], layers=2, windows=(None, None)))
PROMPT = np.random.default_rng(5).integers(0, CONFIG.vocab, 20).tolist()
TOKENS = 6
SAMPLINGS = {
    "greedy": Sampling(),
    "greedy with penalties": Sampling(repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.4),
    "greedy with a bias": Sampling(logit_bias=((0, -100.0), (CONFIG.vocab - 1, 9.0))),
    "everything allowed": Sampling(temperature=1.0, seed=1),
    "top-k 1": Sampling(temperature=2.0, top_k=1, seed=2),
    "top-k 40": Sampling(temperature=1.0, top_k=40, seed=3),
    "top-k of nearly all": Sampling(temperature=1.0, top_k=CONFIG.vocab - 1, seed=4),
    "top-p": Sampling(temperature=1.3, top_p=0.9, seed=5),
    "top-p of one": Sampling(temperature=0.7, top_p=1e-6, seed=6),
    "min-p": Sampling(temperature=1.0, min_p=0.2, seed=7),
    "hot": Sampling(temperature=50.0, top_k=1000, top_p=0.3, min_p=0.01, seed=2**63),
    "cold": Sampling(temperature=0.01, top_p=0.99, seed=2**64 - 1),
    "all of it": Sampling(0.8, 200, 0.9, 0.01, 9, 1.3, 0.5, -0.5, ((5, 4.0), (90, -100.0), (91, 0.25))),
}


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with opened(CONFIG, MadeUpWeights(CONFIG), 256) as target:
        yield target


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_are_those_of_the_reference(target: Target, sampling: Sampling) -> None:
    request = Request(PROMPT, 0, TOKENS, frozenset(), sampling, logprobs=20)
    tokens, finish = run(target, request)
    assert finish is Finish.LENGTH
    ids = [token.id for token in tokens]
    reference = Sampler(sampling, CONFIG.vocab, np.array(PROMPT), 20)
    logits = chosen_from(target, request, ids, CONFIG.vocab)
    for position, (row, token) in enumerate(zip(logits, tokens, strict=True), start=len(PROMPT)):
        choice = reference.choose(row, position)
        assert token.id == choice.token
        assert token.logprob == choice.logprob(choice.distance)
        assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)
    # Where nobody asks for logprobs, the plainest greedy request never brings all logits together.
    plain, _ = run(target, replace(request, logprobs=None))
    assert [token.id for token in plain] == ids
    assert all(token.logprob is None and not token.top for token in plain)


def test_many_draws(target: Target) -> None:
    """Seeds and positions give other random numbers: a draw somewhere in the vocabulary, each time another one."""
    drawn = set()
    for seed in range(64):
        sampling = Sampling(temperature=3.0, seed=seed)
        request = Request(PROMPT, len(PROMPT) - 1 if seed else 0, 1, frozenset(), sampling, logprobs=0)
        (token,), _ = run(target, request)
        (row,) = chosen_from(target, request, [token.id], CONFIG.vocab)
        assert token.id == Sampler(sampling, CONFIG.vocab, np.array(PROMPT)).choose(row, len(PROMPT)).token
        drawn.add(token.id)
    assert len(drawn) > 32
