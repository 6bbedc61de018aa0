"""The kernel for cards that are not here: real models, from the same sources, for every card of the table.

A layer is compiled and the layers are a loop, so that two of them are enough. A kernel takes ten seconds, and there are
more pairs of a model and a card than there is time for in every run: MONOLANE_TEST=all compiles all of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from emulated import EmulatedTarget

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.bench.measure.subject import find_model
from monolane.model.config import ModelConfig
from monolane.program.plan import Plan
from monolane.program.sample import Sampling
from monolane.progress import Silent
from monolane.target.base import Request
from monolane.target.cuda import inspect
from monolane.target.cuda.cards import CARDS
from monolane.target.cuda.inspect import compiled_for, plan_for
from monolane.target.cuda.shared_memory import shared_memory
from oracle import judge_weights, near_enough
from thorough import seldom, thorough

SMALL = "rtx-5090"  # the least shared memory
EVERY_RUN = (SMALL, "smollm2-135m")  # and for an H200 in test_cuda_cubin.py
# 57 KiB for the input of its widest matrix leave no ring of the 99 KiB; nor would its 141 GB fit the memory.
REFUSED = {(card, "llama-3.1-70b") for card in ("rtx-5080", "rtx-5090", "rtx-pro-6000")}
REFUSED |= {(card, name) for card in CARDS for name, shape in SHAPES.items() if shape.experts}  # see LOW_BIT
# Bytes of stores. Reading a prompt may spill a little on cards and at sizes that nothing was tuned for; models whose
# speed is measured on the H200 may not (test_cuda_cubin.py). Where setmaxnreg is ignored, SmolLM2 alone spills 168.
MOST_SPILLED = 128
DENSE = [name for name, config in SHAPES.items() if config.experts is None]
# What people run on the cards they have: 4 bits, 8 bits, FP8, and experts.
LOW_BIT = [
    *("qwen2.5-coder-1.5b/q4_k_m", "llama-3.1-8b/q4_k_m", "llama-3.1-8b/q8_0", "llama-3.1-8b/fp8", "qwen3-14b/q4_k_m"),
    *("smollm2-135m/q4_1", "laneformer-2b/q4_k_m", "qwen3-30b-a3b/q4_k_m", "qwen3-30b-a3b", "gpt-oss-20b"),
]
PAIRS = [pair for pair in product(("h200", "b200", "b300", SMALL), DENSE) if pair not in REFUSED]


def cut(name: str) -> ModelConfig:
    return replace(SHAPES[name], layers=2, windows=SHAPES[name].windows[-2:])


@pytest.mark.parametrize(("card", "name"), [pair if pair == EVERY_RUN else seldom(*pair) for pair in PAIRS])
def test_real_models_compile_for_every_card(card: str, name: str) -> None:
    """And consumers have their registers: where one word of PTX is a call to an assembler, all threads lose them."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages")
    compiled = compiled_for(plan_for(cut(name), CARDS[card]), CARDS[card])
    assert compiled.resources.spill_store_bytes <= MOST_SPILLED, compiled.log


def low_bit_plan(subject: str, card: str) -> Plan:
    name, _, mixture = subject.partition("/")
    _, model = find_model(None, f"{name}:2", Silent(), mixture or None)
    return plan_for(model.config, CARDS[card], None, model.weights.format)


@thorough
@pytest.mark.parametrize("subject", LOW_BIT)
@pytest.mark.parametrize("card", ["b200", SMALL])
def test_low_bit_models_and_experts_compile_for_every_card(card: str, subject: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages")
    compiled = compiled_for(low_bit_plan(subject, card), CARDS[card])
    assert compiled.resources.spill_store_bytes <= MOST_SPILLED, compiled.log


@pytest.mark.parametrize("subject", LOW_BIT)
@pytest.mark.parametrize("card", ["h200", "rtx-5080", SMALL])
def test_low_bit_models_and_experts_have_a_ring_on_every_card(card: str, subject: str) -> None:
    memory = shared_memory(low_bit_plan(subject, card), CARDS[card].shared_limit)
    assert memory.slots >= 4
    assert memory.prefill_slots >= 2


def test_the_report_of_another_card_has_no_times_of_an_h200() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages")
    report = inspect.report(plan_for(cut("smollm2-135m"), CARDS[SMALL]), 1024, CARDS[SMALL])
    assert "NVIDIA GeForce RTX 5090 (sm_120a): 170 workers, 101,376 bytes" in report
    assert "predicted" not in report


@pytest.mark.parametrize(("card", "name"), [pair for pair in product(CARDS, SHAPES) if pair not in REFUSED])
def test_every_model_has_a_ring_on_every_card(card: str, name: str) -> None:
    """Deep enough that copies are on their way while chunks are multiplied."""
    plan = plan_for(cut(name), CARDS[card])
    memory = shared_memory(plan, CARDS[card].shared_limit)
    decoding, reading = memory.slots, memory.prefill_slots
    assert decoding >= 3
    assert reading >= 2


@thorough
@pytest.mark.parametrize("family", ["qwen3", seldom("qwen2")])
def test_a_small_ring_gives_the_same_answers(family: str) -> None:
    """In emulation, with the shared memory of a small card, and shapes that leave only a few slots of it."""
    config = ModelConfig(
        family=family, hidden=1024, layers=2, heads=8, kv_heads=2, head_dim=64, ffn=1536, vocab=300, context=256,
        norm_eps=1e-5, rope=SHAPES["llama-3.2-1b"].rope, windows=(None, None), qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3", tied=True,
    )  # fmt: skip
    weights = MadeUpWeights(config)
    tokens = np.random.default_rng(5).integers(0, config.vocab, 21).tolist()
    target = EmulatedTarget(config, weights, workers=3, shared_limit=CARDS[SMALL].shared_limit)
    logits = target.logits(tokens)
    near_enough(judge_weights(config, weights, tokens), logits)
    made, _ = target.run(Request(tokens, 0, 3, frozenset(), Sampling()))
    assert made[0].id == logits[-1].argmax()
    assert len(made) == 3
