"""The accuracy check: the reference agrees with transformers, and a target that computes something else fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monolane.bench.measure import accuracy, reference
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.errors import TargetError
from monolane.model.quantise import quantised
from monolane.target import open_target
from random_models import CASES, MIXTURES, Case, random_model

TINY = replace(
    SHAPES["laneformer-2b"],
    hidden=96,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=24,
    ffn=160,
    vocab=300,
    context=64,
    windows=(10, 10, None),
)
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, TINY.vocab, accuracy.PROMPT_TOKENS)]


@pytest.mark.parametrize("case", CASES + MIXTURES, ids=lambda case: case.name)
def test_the_reference_is_transformers_in_fp32(case: Case) -> None:
    model = random_model(case, 300 if case in MIXTURES else 200)  # as other tests have it
    found = reference.read(model.config, model.weights, model.tokens[:40])
    np.testing.assert_allclose(found.exact, model.logits[:40], atol=1e-4)
    error = np.abs(found.rounded - found.exact).max()
    assert 1e-3 < error < 1  # rounded, and yet the same model


@pytest.mark.parametrize("device", ["interpreter", "cpu"])
def test_our_targets_pass(device: str) -> None:
    weights = MadeUpWeights(TINY)
    target = open_target(TINY, weights, device=device, workers=2, context=64)
    try:
        verdict = accuracy.require(accuracy.judge(TINY, weights, target, PROMPT))
    finally:
        target.close()
    assert verdict.positions == accuracy.PROMPT_TOKENS + accuracy.DECODED_TOKENS - 1
    assert 0 <= verdict.divergence < verdict.divergence_of_bf16
    plain = verdict.to_dict()
    assert plain["verdict"] == "passed"
    assert "1.1" in plain["bound"]
    assert "divergence_of_quantising" not in plain


def test_what_quantising_loses_is_told() -> None:
    lost = {}
    for kind in ("q8", "q4"):
        weights = quantised(MadeUpWeights(TINY), kind)
        target = open_target(TINY, weights, device="interpreter", workers=1, context=64)
        try:
            lost[kind] = accuracy.judge(TINY, weights, target, PROMPT).to_dict()["divergence_of_quantising"]
        finally:
            target.close()
    assert 0 < lost["q8"] < lost["q4"] < 1


def test_other_weights_fail() -> None:
    target = open_target(TINY, MadeUpWeights(TINY, seed=1), device="cpu", workers=1, context=64)
    try:
        verdict = accuracy.judge(TINY, MadeUpWeights(TINY), target, PROMPT)
    finally:
        target.close()
    assert verdict.to_dict()["verdict"] == "failed"
    with pytest.raises(TargetError, match="its speed means nothing"):
        accuracy.require(verdict)


def readings(noise: float) -> reference.Readings:
    dice = np.random.default_rng(0)
    exact = dice.standard_normal((6, 50)).astype(np.float32)
    return reference.Readings(exact, exact + noise * dice.standard_normal((6, 50)).astype(np.float32))


def test_logits_may_be_as_wrong_as_bf16_and_not_more() -> None:
    truth = readings(0.01)
    likeliest = [int(token) for token in truth.exact[-3:].argmax(1)]
    assert accuracy.compare(truth, truth.rounded, likeliest).passed
    assert not accuracy.compare(truth, truth.exact + 2 * (truth.rounded - truth.exact), likeliest).passed
    assert not accuracy.compare(truth, truth.exact * np.float32(np.nan), likeliest).passed


def test_a_decoded_token_must_be_the_likeliest_or_next_to_it() -> None:
    truth = readings(0.01)
    order = truth.exact[-3:].argsort(1)
    assert accuracy.compare(truth, truth.exact, [int(token) for token in order[:, -1]]).passed
    assert not accuracy.compare(truth, truth.exact, [int(token) for token in order[:, 0]]).passed
