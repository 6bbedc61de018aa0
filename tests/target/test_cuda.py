"""The kernel on a GPU: small models of every family, in awkward shapes, against transformers and the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from devices import chosen_from, decode_logits, facts, on_the_gpu, opened, run

from monolane.program.sample import Sampler, Sampling
from monolane.target.base import Finish, Request
from oracle import Verdict, near_enough
from random_models import CASES, Case, random_model, rounded_logits

pytestmark = on_the_gpu

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 65)
DECODED = 40  # tokens that are also computed by decode passes, one by one
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=3, presence_penalty=0.5, frequency_penalty=0.2),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits(case: Case, record_property: Callable[[str, object], None]) -> None:
    model = random_model(case)
    with opened(model.config, model.weights, 256) as target:
        verdict = Verdict(model.logits, rounded_logits(model))
        # No logit of ours is farther from fp32 than the farthest of transformers' own in bf16.
        limit = np.abs(verdict.rounded - verdict.exact).max()
        for length in LENGTHS:
            ours = target.logits(model.tokens[:length])
            np.testing.assert_allclose(ours, verdict.exact[:length], atol=limit, rtol=0)
            np.testing.assert_array_equal(ours, target.logits(model.tokens[:length]))
        decoded = decode_logits(target, model.tokens[:DECODED], case.vocab)
        np.testing.assert_allclose(decoded, verdict.exact[:DECODED], atol=limit, rtol=0)
        record_property("prefill", near_enough(verdict, target.logits(model.tokens)))
        record_property("decode", near_enough(verdict, decoded))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
def test_tokens(case: Case, sampling: Sampling) -> None:
    model = random_model(case)
    with opened(model.config, model.weights, 256) as target:
        for prompt in (1, 17, 100):
            request = Request(model.tokens[:prompt], 0, 6, frozenset(), sampling, logprobs=3)
            tokens, finish = run(target, request)
            assert finish is Finish.LENGTH
            assert facts(run(target, request)[0]) == facts(tokens)
            ids = [token.id for token in tokens]
            # Where nobody asks for logprobs, a greedy token is found on another path.
            assert [token.id for token in run(target, replace(request, logprobs=None))[0]] == ids
            reference = Sampler(sampling, case.vocab, np.array(model.tokens[:prompt]), 3)
            logits = chosen_from(target, request, ids, case.vocab)
            for position, (row, token) in enumerate(zip(logits, tokens, strict=True), start=prompt):
                choice = reference.choose(row, position)
                assert token.id == choice.token
                assert token.logprob == choice.logprob(choice.distance)
                assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)
