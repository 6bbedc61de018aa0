"""Matrices with their columns in an order of their own: every target, against transformers in fp32."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from emulated import EmulatedTarget

from low_bit import OrderedWeights
from monolane.model.format import FORMATS
from monolane.model.weights import expected_shapes
from monolane.target import open_target, plan_for
from monolane.target.cuda import generate
from monolane.target.cuda.shared_memory import shared_memory
from oracle import Verdict, judge_weights, near_enough
from random_models import CASES, RandomModel, random_model
from thorough import seldom, thorough

TOKENS = 20
DECODED = range(17, TOKENS)
WIDTHS = {"hidden": 320, "ffn": 416}  # whole groups, and not whole super-blocks


@cache
def ordered() -> tuple[RandomModel, OrderedWeights, Verdict]:
    case = next(case for case in CASES if case.name == "qwen2-64")
    made = random_model(replace(case, name="qwen2-ordered", layers=2, **WIDTHS), TOKENS)
    names = [name for name, shape in expected_shapes(made.config) if len(shape) == 2]
    weights = OrderedWeights(made.weights, names, [FORMATS["u4g32z"]])
    return made, weights, judge_weights(made.config, weights, made.tokens)


@pytest.mark.parametrize("device", ["interpreter", seldom("cpu")])
def test_logits_are_as_near_as_those_of_bf16(device: str) -> None:
    made, weights, verdict = ordered()
    target = open_target(made.config, weights, device=device, workers=2, context=64, cache_format="f32")
    numbers = near_enough(verdict, target.logits(made.tokens))
    assert numbers["divergence"] < 0.1 * numbers["divergence_of_bf16"]
    target.close()


def check(target: EmulatedTarget) -> None:
    made, _, verdict = ordered()
    near_enough(verdict, target.logits(made.tokens))
    decoded = np.concatenate([target.logits(made.tokens[: at + 1], at) for at in DECODED])
    near_enough(Verdict(verdict.exact[DECODED], verdict.rounded[DECODED]), decoded)


def test_the_cuda_kernel() -> None:
    made, weights, _ = ordered()
    check(EmulatedTarget(made.config, weights, 4))


@thorough
def test_inputs_that_shared_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "shared_memory", lambda *given: replace(shared_memory(*given), prefill_cols=0))
    made, weights, _ = ordered()
    check(EmulatedTarget(made.config, weights, 4))


def test_lanes_widen_what_they_would_cut() -> None:
    made, weights, verdict = ordered()
    target = open_target(made.config, weights, device="interpreter", workers=2, context=64, lanes=2)
    near_enough(verdict, target.logits(made.tokens))
    plan = plan_for(made.config, 2, "f32", 2, weights.format)
    found = {stage.name: stage.matrix.format.ordered for stage in plan.program.projections}
    assert found["gate_up"]
    assert not found["o"]
    assert not found["down"]
