"""Mixtures of experts in the CUDA kernel's own sources, in the emulation, against transformers and the interpreter."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated import EmulatedTarget
from emulated_gpu import open_emulated_gpu
from numpy.typing import NDArray

from low_bit import LowBitWeights
from monolane.errors import TargetError
from monolane.model.format import FORMATS
from monolane.model.weights import Bf16Bits
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Request
from monolane.target.cuda import generate
from monolane.target.cuda.cards import LARGE, SMALL
from monolane.target.cuda.layers import numbered_stages
from monolane.target.cuda.shared_memory import shared_memory
from random_models import MIXTURES, Case, RandomModel, random_model
from thorough import seldom, thorough

TOKENS = 40
DECODED = range(TOKENS - 4, TOKENS)  # positions that are also computed by decode passes, one by one
# What bf16 activations change of logits with a deviation of about 0.7: at most positions, and at those where the logits
# of two experts are so near that they choose the other.
USUAL, MOST = 0.03, 0.1
BY_NAME = {case.name: case for case in MIXTURES}


def mixture(name: str, layers: int = 2, **extra: Any) -> RandomModel:
    """A model whose layers all have experts."""
    case: Case = BY_NAME[name]
    everywhere = {"qwen3-moe": {"mlp_only_layers": []}, "qwen2-moe-shared": {"decoder_sparse_step": 1}}.get(name, {})
    settings = case.extra | everywhere | extra
    spoken = "-".join(f"{key}{value}" for key, value in extra.items())
    return random_model(replace(case, name=f"{name}-all-{layers}-{spoken}", layers=layers, extra=settings), TOKENS)


def logits_of(target: EmulatedTarget, tokens: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Those of prefill passes, and those of decode passes of the last positions."""
    prefill = target.logits(tokens)
    return prefill, np.concatenate([target.logits(tokens[: at + 1], at) for at in DECODED])


def check(target: EmulatedTarget, tokens: list[int], expected: NDArray[np.float32]) -> None:
    for found, right in zip(logits_of(target, tokens), (expected, expected[DECODED]), strict=True):
        wrong = np.abs(found - right).max(axis=1)
        assert np.median(wrong) < USUAL
        assert wrong.max() < MOST


@pytest.mark.parametrize(
    ("name", "extra", "workers"),
    [
        seldom("qwen2-moe-shared", {}, 20),  # some workers have no tile of a stage
        ("gpt-oss", {}, 4),
        seldom("qwen3-moe", {}, 4),
        seldom("mixtral", {"sliding_window": None}, 3),
        seldom("mixtral", {"sliding_window": None, "num_experts_per_tok": 2}, 3),
        seldom("mixtral", {"sliding_window": None, "num_experts_per_tok": 4}, 1),
        seldom("qwen3-moe", {"num_experts_per_tok": 3, "norm_topk_prob": False}, 40),
    ],
)
def test_logits_are_those_of_transformers(name: str, extra: dict[str, Any], workers: int) -> None:
    model = mixture(name, **extra)
    check(EmulatedTarget(model.config, model.weights, workers), model.tokens, model.logits)


@pytest.mark.parametrize("shared_limit", [LARGE, seldom(SMALL)])
@pytest.mark.parametrize("formats", [("u4k32", "fp4e32"), seldom(("i6k16", "i8g32")), seldom(("e4m3k128", "u4g32m"))])
def test_experts_in_low_bit_formats_are_those_of_the_interpreter(formats: tuple[str, str], shared_limit: int) -> None:
    model = mixture("qwen3-moe")
    names = [f"layers.{layer}.experts.{part}" for layer in (0, 1) for part in ("gate", "up", "down")]
    weights = LowBitWeights(model.weights, names, [FORMATS[name] for name in (formats[0], *formats)])
    exact = open_target(model.config, weights, device="interpreter", workers=1, context=64, cache_format="f32")
    check(EmulatedTarget(model.config, weights, 4, shared_limit=shared_limit), model.tokens, exact.logits(model.tokens))


class EqualRouters(LowBitWeights):
    """The weights of another model, but for routers: experts have the same logits in threes."""

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if not name.endswith("router"):
            return self.inner.rows(name, start, stop)
        whole = self.inner.rows(name, 0, self.shape(name)[0])
        return np.ascontiguousarray(whole[np.arange(start, stop) // 3 * 3])


@pytest.mark.parametrize("chosen", [4, seldom(1), seldom(7)])
def test_of_experts_with_the_same_logit_the_first_are_chosen(chosen: int) -> None:
    model = mixture("qwen3-moe", num_experts_per_tok=chosen)
    weights = EqualRouters(model.weights, [], [])
    exact = open_target(model.config, weights, device="interpreter", workers=1, context=64, cache_format="f32")
    right = exact.logits(model.tokens)
    found = np.concatenate(logits_of(EmulatedTarget(model.config, weights, 4), model.tokens))
    wrong = np.abs(found - np.concatenate([right, right[DECODED]])).max(axis=1)
    assert np.quantile(wrong, 0.9) < USUAL  # where two threes are near each other, three experts are exchanged at once


@pytest.mark.parametrize(
    ("name", "extra", "workers"),
    [
        ("gpt-oss", {}, 5),
        seldom("qwen2-moe-shared", {"num_experts_per_tok": 2}, 40),  # some workers have no tile of a stage
        seldom("qwen3-moe", {}, 4),
    ],
)
def test_two_lanes_have_a_part_of_every_expert(name: str, extra: dict[str, Any], workers: int) -> None:
    model = mixture(name, **extra)
    check(EmulatedTarget(model.config, model.weights, workers, lanes=2), model.tokens, model.logits)


@thorough
def test_inputs_that_shared_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "shared_memory", lambda *given: replace(shared_memory(*given), prefill_cols=0))
    model = mixture("qwen2-moe-shared")
    check(EmulatedTarget(model.config, model.weights, 4), model.tokens, model.logits)


@thorough
def test_workers_and_delays_change_no_bit() -> None:
    model = mixture("qwen2-moe-shared")
    found = [
        np.concatenate(
            logits_of(EmulatedTarget(model.config, model.weights, workers, delay_permille=delay), model.tokens)
        )
        for workers, delay in ((2, 0), (5, 30), (30, 0))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("name", "workers", "lanes"),
    [
        ("qwen3-moe", 4, 1),
        seldom("qwen2-moe-shared", 30, 1),
        seldom("qwen3-moe", 5, 2),
    ],
)
def test_some_layers_have_experts_and_the_others_do_not(name: str, workers: int, lanes: int) -> None:
    model = random_model(BY_NAME[name], TOKENS)
    assert model.config.experts is not None
    assert set(model.config.experts.layers) == {True, False}
    check(EmulatedTarget(model.config, model.weights, workers, lanes=lanes), model.tokens, model.logits)


@thorough
def test_a_layer_without_experts_has_no_router_in_a_trace_and_a_stuck_worker_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it imports needs the CUDA packages.
    from emulated_apart import opened_apart

    model = random_model(BY_NAME["qwen3-moe"], TOKENS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # of the other lane's process
    with opened_apart(model.config, model.weights, 2) as target:
        stages = target.program.begun
        stamps = target.trace(Request(model.tokens[:4], 0, 6, frozenset(), Sampling()), 1, 2)
        assert stamps.shape[2] == len(stages)
        ends = stamps[..., 2].max(1).reshape(-1)  # of all stages, one after the other
        assert (ends > 0).all()
        assert (np.diff(ends) >= 0).all()
    # The last layer has experts, and the one before has none: numbers count the stages that it skips.
    router = numbered_stages(target.program).index(next(stage for stage in reversed(stages) if stage.name == "router"))
    with closing(open_emulated_gpu(model.config, model.weights, 64, stall=(1, router, 20))) as target:
        target.launcher.launch.deadline_ns, target.silent_s = 5_000_000_000, 60.0
        with pytest.raises(TargetError, match="at stage 'router' of layer 2"):
            for _ in target.run(Request(model.tokens[:4], 0, 6, frozenset(), Sampling())):
                pass
