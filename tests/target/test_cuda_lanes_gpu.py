"""Lanes as groups of SMs of a GPU: the logits of the whole model, the same bits in every run, a stuck lane is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import DEVICE, decode_logits, dry, facts, on_the_gpu, opened, run

from laneformers import VARIANTS, laneformer
from monolane.bench.measure import accuracy
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.target.base import Request
from random_models import CASES, random_model

pytestmark = on_the_gpu

TOLERANCE = 0.2  # of bf16 activations
DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1)
BY_NAME = {case.name: case for case in CASES}
REPEATS = 10
# Real shapes with fewer layers, and the numbers of lanes. The last one is whole.
SHAPED = [("llama-3.2-1b", 2, 2), ("qwen2.5-coder-1.5b", 2, 4), ("qwen3-1.7b", 2, 8), ("laneformer-2b", 7, 8)]
SHAPED += [("laneformer-135m", 30, 7)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_laneformer_is_the_module(variant: str) -> None:
    model = laneformer(variant)
    assert model.config.lanes is not None
    tolerance = TOLERANCE * model.logits.std() / 2
    with opened(model.config, model.weights, 256, lanes=model.config.lanes.count) as target:
        np.testing.assert_allclose(target.logits(model.tokens[:70]), model.logits[:70], atol=tolerance, rtol=0)
        decoded = decode_logits(target, model.tokens[:40], model.config.vocab)
        np.testing.assert_allclose(decoded, model.logits[:40], atol=tolerance, rtol=0)
        request = Request(model.tokens[:20], 0, 40, frozenset(), DRAWN, 5)
        expected = facts(run(target, request)[0])
        assert all(facts(run(target, request)[0]) == expected for _ in range(REPEATS))


@pytest.mark.parametrize(("name", "lanes"), [("llama-64-tied", 2), ("qwen2-96", 4), ("qwen3-96-seven-kv-heads", 8)])
def test_the_logits_are_those_of_transformers(name: str, lanes: int) -> None:
    model = random_model(BY_NAME[name])
    with opened(model.config, model.weights, 256, lanes=lanes) as target:
        np.testing.assert_allclose(target.logits(model.tokens[:70]), model.logits[:70], atol=TOLERANCE, rtol=0)
        decoded = decode_logits(target, model.tokens[:40], model.config.vocab)
        np.testing.assert_allclose(decoded, model.logits[:40], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("name", "layers", "lanes"), SHAPED)
def test_real_shapes_are_as_near_to_fp32_as_bf16(name: str, layers: int, lanes: int) -> None:
    windows = SHAPES[name].windows[-layers:]
    config = dry(replace(SHAPES[name], layers=layers, windows=windows))
    weights = MadeUpWeights(config)
    with opened(config, weights, 1024, lanes=lanes) as target:
        prompt = np.random.default_rng(3).integers(0, config.vocab, 40).tolist()
        assert accuracy.judge(config, weights, target, prompt).passed
        request = Request(prompt, 0, 600, frozenset(), Sampling())
        expected = facts(run(target, request)[0])
        assert all(facts(run(target, request)[0]) == expected for _ in range(3))


def test_a_lane_that_stalls_is_named() -> None:
    model = laneformer("two lanes")
    stalled = 67 if DEVICE in ("cuda", "compile") else 4  # a worker of the second lane
    with (
        opened(model.config, model.weights, 64, stall=(stalled, 4, 2), deadline_s=0.5, lanes=2) as target,
        pytest.raises(TargetError, match=r"of lane [01] waited too long"),
    ):
        run(target, Request(model.tokens[:4], 0, 4, frozenset(), Sampling()))
