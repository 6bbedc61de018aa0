"""Low-bit weights on a GPU: every format in small models, and the usual mixtures at the shapes of real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from devices import decode_logits, facts, on_the_gpu, opened, run
from test_cuda_low_bit import config_of, tokens_of
from test_cuda_shapes import cut, some_tokens
from test_low_bit import MIXTURES, model
from test_ordered_columns import ordered

from monolane.bench.measure.mixtures import FP8, Q4_K_M, MadeUpMixture
from monolane.model.config import ModelConfig
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request, Target
from oracle import judge_weights, near_enough

pytestmark = on_the_gpu

PROMPT = 40  # tokens: two prefill passes of 16 rows and one of 8
REPEATS = 10
LONG = 500  # tokens


@pytest.mark.parametrize("name", MIXTURES)
def test_small_models(name: str, record_property: Callable[[str, object], None]) -> None:
    config, tokens, (weights, verdict) = config_of(name), tokens_of(name), model(name)
    with opened(config, weights, 64) as target:
        record_property("prefill", near_enough(verdict, target.logits(tokens)))
        record_property("decode", near_enough(verdict, decode_logits(target, tokens, config.vocab)))


def test_columns_in_an_order_of_their_own(record_property: Callable[[str, object], None]) -> None:
    made, weights, verdict = ordered()
    with opened(made.config, weights, 64) as target:
        record_property("prefill", near_enough(verdict, target.logits(made.tokens)))
        record_property("decode", near_enough(verdict, decode_logits(target, made.tokens, made.config.vocab)))


# Eight layers: q4_k_m has several kinds of them.
REAL = {
    ("llama-3.2-1b", Q4_K_M): cut("llama-3.2-1b", 8, 5003),
    ("llama-3.2-1b", "q8_0"): cut("llama-3.2-1b", 2),
    ("llama-3.1-8b", Q4_K_M): cut("llama-3.1-8b", 8, 5003),
    ("llama-3.1-8b", FP8): cut("llama-3.1-8b", 3, 5003),
    ("llama-3.2-1b", FP8): cut("llama-3.2-1b", 2),
    ("qwen2.5-coder-1.5b", FP8): cut("qwen2.5-coder-1.5b", 3, 5003),
    ("qwen2.5-coder-1.5b", Q4_K_M): cut("qwen2.5-coder-1.5b", 8, 5003),
    ("qwen2.5-coder-1.5b", "q4_1"): cut("qwen2.5-coder-1.5b", 3, 5003),
    ("smollm2-135m", "q8_0"): cut("smollm2-135m", 4),
}


@dataclass(frozen=True)
class Mixture:
    config: ModelConfig
    weights: MadeUpMixture
    target: Target


@pytest.fixture(scope="module", params=REAL, ids=" ".join)
def mixture(request: pytest.FixtureRequest) -> Iterator[Mixture]:
    config = REAL[request.param]
    weights = MadeUpMixture(config, request.param[1])
    with opened(config, weights, 1024) as target:
        yield Mixture(config, weights, target)


def test_logits(mixture: Mixture, record_property: Callable[[str, object], None]) -> None:
    tokens = some_tokens(mixture.config, PROMPT)
    verdict = judge_weights(mixture.config, mixture.weights, tokens)
    record_property("prefill", near_enough(verdict, mixture.target.logits(tokens)))
    record_property("decode", near_enough(verdict, decode_logits(mixture.target, tokens, mixture.config.vocab)))


def test_the_same_bits_every_time(mixture: Mixture) -> None:
    tokens = some_tokens(mixture.config, 100)
    expected = mixture.target.logits(tokens)
    assert np.isfinite(expected).all()
    for _ in range(REPEATS - 1):
        np.testing.assert_array_equal(mixture.target.logits(tokens), expected)


def test_long_runs_are_identical(mixture: Mixture) -> None:
    request = Request(some_tokens(mixture.config, 100), 0, LONG, frozenset(), Sampling(), logprobs=1)
    first, finish = run(mixture.target, request)
    assert finish is Finish.LENGTH
    assert facts(run(mixture.target, request)[0]) == facts(first)
