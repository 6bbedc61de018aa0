"""`inspect --device cuda` without a GPU: the card, and the predicted time of a token.

The report of a kernel's resources is tested where kernels are compiled: test_cuda_cubin.py and test_cuda_targets.py.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from monolane.bench.measure.shapes import SHAPES
from monolane.errors import UsageError
from monolane.target.cuda import inspect
from monolane.target.cuda.cards import ARCHITECTURES, CARDS, Card
from monolane.target.cuda.predict import CEILING, HANDOFF_US, predicted_us

TINY = replace(
    SHAPES["qwen3-1.7b"], hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=100, windows=(None,) * 2
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_takes_its_weights_and_at_most_all_hand_offs(shape: str) -> None:
    layers = min(16, SHAPES[shape].layers)
    config = replace(SHAPES[shape], layers=layers, windows=SHAPES[shape].windows[:layers])
    plan = inspect.plan_for(config, inspect.H200)
    weights = plan.program.lanes * plan.bytes_per_token / CEILING * 1e6
    deep, shallow = (predicted_us(plan, slots) for slots in (12, 2))
    assert len(deep) == len(plan.program.stages)
    assert weights < sum(deep) < sum(shallow) < weights + plan.program.handoffs * HANDOFF_US * 1.2
    assert all(added >= 0 for added in deep)


def test_a_model_of_nothing_but_hand_offs_takes_their_time() -> None:
    plan = inspect.plan_for(TINY, inspect.H200)
    assert sum(predicted_us(plan, 12)) == pytest.approx(plan.program.handoffs * HANDOFF_US, rel=0.05)


def test_the_card_is_that_of_this_machine_or_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "find_gpu", lambda: None)
    assert inspect.choose_card("cuda", None) == inspect.H200
    assert inspect.choose_card("auto", None) is None
    here = SimpleNamespace(name="NVIDIA H100", processors=114, shared_limit=200_000, architecture="sm_90a")
    monkeypatch.setattr(inspect, "find_gpu", lambda: here)
    card = Card("NVIDIA H100", 114, 200_000, "sm_90a")
    assert inspect.choose_card("cuda", None) == inspect.choose_card("auto", None) == card
    assert inspect.choose_card("auto", 2) is inspect.choose_card("cpu", None) is None
    with pytest.raises(UsageError, match="multiprocessor"):
        inspect.choose_card("cuda", 2)


def test_a_card_that_is_not_here_can_be_named() -> None:
    assert inspect.choose_card("auto", None, "RTX-5090") == CARDS["rtx-5090"]
    assert {card.architecture for card in CARDS.values()} == set(ARCHITECTURES.values())
    with pytest.raises(UsageError, match="gtx-1080") as refused:
        inspect.choose_card("cuda", None, "gtx-1080")
    assert "b200" in refused.value.hint
    with pytest.raises(UsageError, match="multiprocessor"):
        inspect.choose_card("auto", 2, "b200")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    plan = inspect.plan_for(TINY, inspect.H200)
    with pytest.raises(UsageError) as refused:
        inspect.report(plan, 1024, inspect.H200)
    assert "pip install 'cuda-bindings==" in refused.value.hint
