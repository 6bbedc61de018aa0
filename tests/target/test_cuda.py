"""The kernel on a GPU: against transformers, against itself, aborted, stuck. Skipped where there is no GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monolane.bench.shapes import SHAPES, MadeUpWeights
from monolane.errors import TargetError
from monolane.program.sample import Sampler, Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target, Token
from monolane.target.cuda.opening import find_gpu
from random_models import CASES, Case, random_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_gpu() is None, reason="needs an NVIDIA GPU of compute capability 9.0"),
]
LENGTHS = (1, 2, 15, 16, 17, 33, 200)
# Activations are exchanged and multiplied in bf16: of logits with a deviation of about 1, that much may differ.
TOLERANCE = 0.25


def run(target: Target, request: Request) -> tuple[list[Token], Finish | None]:
    tokens: list[Token] = []
    started = target.run(request)
    for batch in started:
        tokens += batch
    return tokens, started.finish


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_and_tokens(case: Case) -> None:
    model = random_model(case)
    target = open_target(model.config, model.weights, device="cuda", context=256)
    for length in LENGTHS:
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)
        np.testing.assert_array_equal(ours, target.logits(model.tokens[:length]))
    for sampling in (
        Sampling(),
        Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=3, presence_penalty=0.5),
    ):
        for prompt in (1, 17, 100):
            request = Request(model.tokens[:prompt], 0, 12, frozenset(), sampling, logprobs=3)
            tokens, finish = run(target, request)
            assert finish is Finish.LENGTH
            assert [t.id for t in tokens] == [t.id for t in run(target, request)[0]]
            sequence = [*model.tokens[:prompt], *(token.id for token in tokens)]
            _check_choices(target, sequence, prompt, tokens, sampling, case.vocab)
            plain = run(target, replace(request, logprobs=None))[0]
            assert [t.id for t in plain] == [t.id for t in tokens]
    target.close()


def _check_choices(
    target: Target, sequence: list[int], prompt: int, tokens: list[Token], sampling: Sampling, vocab: int
) -> None:
    """The reference chooses the same from the same logits, where one pass computes them like the other."""
    logits = target.logits(sequence)
    reference = Sampler(sampling, vocab, np.array(sequence[:prompt]), 3)
    agreed = 0
    for made, token in enumerate(tokens):
        choice = reference.choose(logits[prompt + made - 1], prompt + made)
        agreed += choice.token == token.id
        assert token.logprob == pytest.approx(choice.logprob(choice.distance), abs=0.3) or choice.token != token.id
    assert agreed >= len(tokens) - 3  # wide and narrow passes round differently


def test_abort_stop_and_cache() -> None:
    model = random_model(CASES[0])
    target = open_target(model.config, model.weights, device="cuda", context=512)
    request = Request(model.tokens[:20], 0, 400, frozenset(), Sampling())
    complete = [t.id for t in run(target, request)[0]]
    assert len(complete) == 400
    started = target.run(request)
    seen: list[int] = []
    for batch in started:
        seen += [t.id for t in batch]
        started.abort()
    assert seen == complete[: len(seen)]
    assert started.finish in (Finish.ABORT, Finish.LENGTH)
    stop = complete[10]
    stopped, finish = run(target, replace(request, stop_tokens=frozenset({stop})))
    assert finish is Finish.STOP
    assert [t.id for t in stopped] == complete[: complete.index(stop) + 1]
    longer = [*model.tokens[:20], *complete[:30]]
    rest, _ = run(target, replace(request, tokens=longer, cached=len(longer) - 1, max_tokens=20))
    assert [t.id for t in rest] == complete[30:50]
    target.close()
    with pytest.raises(TargetError):
        target.run(request)


def test_a_real_shape_gives_the_same_bits_every_time() -> None:
    """Large enough for several batches of tiles a block, and for an input that does not fit shared memory."""
    config = replace(SHAPES["llama-3.2-1b"], layers=2, windows=(None, None), vocab=1000)
    target = open_target(config, MadeUpWeights(config), device="cuda", context=256)
    tokens = [(7 * i) % 1000 for i in range(100)]
    expected = target.logits(tokens)
    assert np.isfinite(expected).all()
    for _ in range(5):
        np.testing.assert_array_equal(target.logits(tokens), expected)
    target.close()
