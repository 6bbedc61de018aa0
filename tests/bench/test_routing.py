"""Made-up routers spread tokens over experts as they are asked to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monolane.bench.measure import reference
from monolane.bench.measure.routing import EVEN, SKEWED, frequencies, shared_experts, shared_if_even
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.model.config import ModelConfig

TOKENS = 200


def narrow(name: str, layers: int = 6) -> ModelConfig:
    """All experts of a shape, in a model that is quick to compute."""
    shape = SHAPES[name]
    assert shape.experts is not None
    experts = replace(shape.experts, ffn=32, layers=(True,) * layers)
    return replace(shape, hidden=512, layers=layers, heads=4, kv_heads=2, head_dim=64, vocab=3000,
                   windows=shape.windows[:layers], experts=experts)  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-20b"])
def test_experts_are_used_as_often_as_asked(name: str) -> None:
    """In the first layer and in the last: layers with random weights make tokens alike, and must not make them use the
    same experts."""
    config = narrow(name)
    assert config.experts is not None
    text = [int(token) for token in np.random.default_rng(0).integers(0, config.vocab, TOKENS)]
    wanted = {EVEN: np.full(config.experts.count, config.experts.chosen / config.experts.count)}
    wanted[SKEWED] = frequencies(config.experts)
    assert wanted[SKEWED].sum() == pytest.approx(config.experts.chosen)
    for routing, shares in wanted.items():
        choices = reference.read(config, MadeUpWeights(config, routing=routing), text).chosen
        assert len(choices) == config.layers
        assert shared_experts(choices, config.experts.count) == pytest.approx((shares**2).sum(), rel=0.15)
        used = [np.sort(np.bincount(each.ravel(), minlength=config.experts.count))[::-1] for each in choices]
        assert np.mean([counts[0] for counts in used]) / TOKENS == pytest.approx(shares[0], abs=0.12)
    assert shared_if_even(config.experts) == pytest.approx((wanted[EVEN] ** 2).sum())


def test_tokens_with_the_same_experts_share_all_of_them() -> None:
    same, other = np.array([[0, 1], [0, 1]]), np.array([[0, 1], [2, 3]])
    assert [shared_experts([choices], 4) for choices in (same, other)] == [2.0, 0.0]
