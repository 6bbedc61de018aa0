"""Mixtures of experts against transformers in fp32, from the same files: on every target the same experts are chosen,
and the logits are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from low_bit import LowBitWeights
from monolane.model.format import FORMATS
from monolane.model.quantise import quantised
from monolane.program import interpret
from monolane.program.route import choose
from monolane.program.sample import Sampling
from monolane.program.stage import Routing, Scoring
from monolane.target import open_target, plan_for
from monolane.target.base import Request
from monolane.target.cpu.runtime import CpuTarget
from random_models import MIXTURES, Case, random_model
from thorough import seldom

LENGTHS = (1, 15, 16, 17, 300)  # around the border of a pass, across the edges of windows and of splits
SLOW_LENGTHS = (17, 150)
TOLERANCE = 5e-4  # what fp32 sums in another order may differ by, of logits with a deviation of about 1
BY_NAME = {case.name: case for case in MIXTURES}


@pytest.mark.parametrize(
    ("device", "workers", "name"),
    [
        *(("interpreter", 3, name) for name in BY_NAME),
        ("cpu", 3, "qwen2-moe-shared"),  # tests/model/test_gpt_oss.py has the kernel of gpt-oss
        *(seldom("cpu", workers, name) for name in BY_NAME for workers in (1, 2)),
    ],
)
def test_logits_are_those_of_transformers(device: str, workers: int, name: str) -> None:
    model = random_model(BY_NAME[name], 300)
    target = open_target(model.config, model.weights, device=device, workers=workers, context=320, cache_format="f32")
    for length in LENGTHS if device == "cpu" else SLOW_LENGTHS:
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)
    target.close()


@pytest.mark.parametrize("case", MIXTURES, ids=lambda case: case.name)
def test_the_same_experts_are_chosen_and_every_one_at_some_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ours = random_model(case, 300), []

    def watched(routing: Routing, logits: NDArray[np.float32]) -> Any:
        found = choose(routing, logits)
        ours.append(found[0])
        return found

    monkeypatch.setattr(interpret, "choose", watched)
    open_target(model.config, model.weights, device="interpreter", workers=1, context=320, cache_format="f32").logits(
        model.tokens[:16]
    )
    theirs: list[NDArray[np.int64]] = []
    twin = transformers.AutoModelForCausalLM.from_pretrained(
        model.folder, dtype=torch.float32, experts_implementation="eager"
    )
    for module in twin.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(lambda module, given, made: theirs.append(made[2].numpy()))
    with torch.no_grad():
        twin(torch.tensor([model.tokens]))
    experts = model.config.experts
    assert experts is not None
    # A layer chooses for gate and up, for its shared expert where it has one, and for down.
    step = 3 if experts.shared_ffn else 2
    assert len(ours) == step * len(theirs) == step * sum(experts.layers)
    for mine, other in zip(ours[::step], theirs, strict=True):
        np.testing.assert_array_equal(mine, np.sort(other[:16], axis=1))
    chosen = np.unique(np.concatenate(theirs))
    assert len(chosen) == experts.count


@pytest.mark.parametrize("name", ["qwen2-moe-shared", seldom("gpt-oss")])
def test_every_number_of_workers_and_every_run_gives_the_same_bits(name: str) -> None:
    model = random_model(BY_NAME[name], 300)
    results = []
    for workers in (1, 3, 8):
        target = open_target(
            model.config, model.weights, device="cpu", workers=workers, context=320, cache_format="f32"
        )
        results += [target.logits(model.tokens), target.logits(model.tokens)]
        # The last pass has fewer rows, which visit fewer experts.
        np.testing.assert_array_equal(target.logits(model.tokens[:19]), results[0][:19])
        target.close()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("formats", [seldom(("fp4e32", "u4k32", "i6k16")), seldom(("i8g32", "u4g32m", "e4m3k128"))])
def test_experts_in_low_bit_formats_are_those_of_the_interpreter(formats: tuple[str, ...]) -> None:
    """One kernel of three formats; columns that end within a group."""
    model = random_model(BY_NAME["qwen3-moe"], 300)
    names = [f"layers.{layer}.experts.{part}" for layer in (0, 2) for part in ("gate", "down")]
    weights = LowBitWeights(model.weights, names, [FORMATS[name] for name in formats])
    logits = []
    for device, workers in (("interpreter", 1), ("cpu", 3)):
        target = open_target(model.config, weights, device=device, workers=workers, context=320, cache_format="f32")
        logits.append(target.logits(model.tokens[:40]))
        target.close()
    np.testing.assert_allclose(logits[0], logits[1], atol=2e-3, rtol=0)


def test_a_trace_has_the_stages_of_a_shared_expert_with_those_they_continue() -> None:
    model = random_model(BY_NAME["qwen2-moe-shared"], 300)
    target = open_target(model.config, model.weights, device="cpu", workers=2, context=320, cache_format="f32")
    assert isinstance(target, CpuTarget)
    stamps = target.trace(Request(model.tokens[:4], 0, 8, frozenset(), Sampling()), 1, 3)
    assert stamps.shape == (3, 2, len(target.program.begun), 3)
    ends = stamps[..., 2].max(1).reshape(-1)
    assert (np.diff(ends) >= 0).all()
    target.close()


def test_equal_logits_go_to_the_first_experts() -> None:
    routing = Routing("routed", 1, 5, 3, Scoring.CHOSEN_SOFTMAX)
    logits = np.array([[9, 1, 2, 2, 1, 1], [9, 0, 0, 0, 0, 0]], np.float32)
    experts, weights = choose(routing, logits)
    np.testing.assert_array_equal(experts, [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    over_all = choose(replace(routing, scoring=Scoring.SOFTMAX), logits)[1]
    np.testing.assert_allclose(over_all[1], [0.2, 0.2, 0.2], rtol=1e-6)


def test_a_plan_knows_what_is_streamed_and_what_is_in_memory() -> None:
    case = BY_NAME["mixtral"]
    plan = plan_for(random_model(case, 300).config, workers=3)
    experts = [
        (plan.layout.tiles(stage) * plan.layout.tile_bytes(stage), stage)
        for stage in plan.program.projections
        if stage.matrix.experts > 1
    ]
    assert len(experts) == 2 * case.layers
    unused = sum((stage.matrix.experts - stage.chosen) * size for size, stage in experts)
    assert plan.resident_bytes - plan.bytes_per_token == unused > 0


def test_routers_are_not_quantised() -> None:
    weights = quantised(random_model(BY_NAME["qwen2-moe-shared"], 300).weights, "q4")
    assert not weights.format("layers.1.router").is_low_bit
    assert weights.format("layers.1.experts.gate").is_low_bit
    assert weights.format("layers.1.shared.down").is_low_bit
