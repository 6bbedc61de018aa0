"""Mixtures of experts on a GPU: every family in small models, and the shapes of real models with fewer layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
from devices import decode_logits, on_the_gpu, opened, run
from test_cuda_experts import BY_NAME, MOST, TOKENS, USUAL, mixture
from test_cuda_shapes import some_tokens

from monolane.bench.measure.accuracy import judge
from monolane.bench.measure.mixtures import MXFP4, Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request, Target
from random_models import RandomModel, random_model

pytestmark = on_the_gpu

REPEATS = 10


@pytest.mark.parametrize(
    ("name", "extra", "lanes"),
    [
        ("qwen2-moe-shared", {}, 1),
        ("qwen3-moe", {}, 1),
        ("qwen3-moe", {"num_experts_per_tok": 3, "norm_topk_prob": False}, 1),
        ("mixtral", {"sliding_window": None}, 1),
        ("mixtral", {"sliding_window": None, "num_experts_per_tok": 2}, 1),
        ("gpt-oss", {"swiglu_limit": 7.0}, 1),  # transformers 5.17 has no other limit
        ("gpt-oss", {"swiglu_limit": 7.0}, 4),
        ("qwen2-moe-shared", {"num_experts_per_tok": 2}, 2),
        ("qwen3-moe", {}, 2),
    ],
)
def test_small_models(
    name: str, extra: dict[str, Any], lanes: int, record_property: Callable[[str, object], None]
) -> None:
    require_logits(mixture(name, **extra), lanes, record_property)


@pytest.mark.parametrize(("name", "lanes"), [("qwen3-moe", 1), ("qwen2-moe-shared", 1), ("qwen3-moe", 2)])
def test_some_layers_have_experts_and_the_others_do_not(
    name: str, lanes: int, record_property: Callable[[str, object], None]
) -> None:
    require_logits(random_model(BY_NAME[name], TOKENS), lanes, record_property)


def require_logits(model: RandomModel, lanes: int, record_property: Callable[[str, object], None]) -> None:
    """Those of transformers, up to what bf16 activations change."""
    with opened(model.config, model.weights, 64, lanes=lanes) as target:
        for kind, found in (
            ("prefill", target.logits(model.tokens)),
            ("decode", decode_logits(target, model.tokens, model.config.vocab)),
        ):
            wrong = np.abs(found - model.logits).max(axis=1)
            record_property(kind, {"median": float(np.median(wrong)), "most": float(wrong.max())})
            assert np.median(wrong) < USUAL
            assert wrong.max() < MOST


@dataclass(frozen=True)
class Real:
    config: ModelConfig
    weights: Weights
    target: Target


def cut(name: str, layers: int) -> ModelConfig:
    """A few layers of a real shape, with a small vocabulary."""
    config = SHAPES[name]
    assert config.experts is not None
    experts = replace(config.experts, layers=config.experts.layers[:layers])
    return replace(config, layers=layers, windows=config.windows[:layers], experts=experts, vocab=5003)


@pytest.fixture(
    scope="module", params=[("qwen3-30b-a3b", "bf16"), ("qwen3-30b-a3b", Q4_K_M), ("gpt-oss-120b", MXFP4)], ids=" ".join
)
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    name, kind = request.param
    config = cut(name, 2)
    weights = MadeUpWeights(config) if kind == "bf16" else MadeUpMixture(config, kind)
    with opened(config, weights, 1024) as target:
        yield Real(config, weights, target)


def test_the_accuracy_gate(real: Real, record_property: Callable[[str, object], None]) -> None:
    verdict = judge(real.config, real.weights, real.target, some_tokens(real.config, 16))
    record_property("verdict", asdict(verdict))
    assert verdict.passed, str(verdict)


def test_the_same_bits_every_time(real: Real) -> None:
    tokens = some_tokens(real.config, 60)
    expected = real.target.logits(tokens)
    assert np.isfinite(expected).all()
    for _ in range(REPEATS - 1):
        np.testing.assert_array_equal(real.target.logits(tokens), expected)


def test_long_runs_are_identical(real: Real) -> None:
    request = Request(some_tokens(real.config, 50), 0, 500, frozenset(), Sampling(), logprobs=1)
    first, finish = run(real.target, request)
    assert finish is Finish.LENGTH
    again, _ = run(real.target, request)
    assert [(token.id, token.logprob) for token in again] == [(token.id, token.logprob) for token in first]
