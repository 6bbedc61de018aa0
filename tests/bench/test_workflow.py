"""The agent's workflow: each turn finds the previous ones in the cache, and the time is wall time."""

from __future__ import annotations

import pytest

from fake_target import FakeTarget
from monolane.bench.measure import timing, workflow
from monolane.bench.measure.subject import Subject, find_model
from monolane.bench.report import show
from monolane.progress import Silent

TOTAL = 6000


def heard(_: str) -> None: ...


def test_every_turn_builds_on_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget(name="cpu (made up)", context=40_000, caches=2, prompt_s=0.001, token_s=0.001)
    monkeypatch.setattr(timing, "perf_counter", target.clock.now_s)
    subject = Subject("m", find_model(None, "smollm2-135m", Silent())[1], target, real=False)
    result = workflow.measure(subject, TOTAL, 4096, heard)
    turns = result["turns"]
    assert sum(turn["tokens"] for turn in turns) == result["tokens"] == TOTAL
    assert [turn["tokens"] for turn in turns[:5]] == [384, 1024, 384, 768, 384]
    assert result["conversations"] == 2
    fresh = [number for number, turn in enumerate(turns) if turn["prompt_tokens"] < 384]
    assert len(fresh) == 2
    for number, turn in enumerate(turns):
        assert turn["prompt_tokens"] + turn["tokens"] <= 4096
        new = turn["prompt_tokens"] - turn["cached_tokens"]
        assert new < 250  # its instruction, and the last token of the answer before
        if number and number not in fresh:
            assert turn["cached_tokens"] >= turns[number - 1]["prompt_tokens"] + turns[number - 1]["tokens"] - 1
    # The second conversation begins as the first one did.
    assert turns[fresh[1]]["cached_tokens"] > 0
    computed = result["prompt_tokens"] - result["cached_tokens"]
    assert result["computed_prompt_tokens"] == computed
    assert result["wall_s"] == pytest.approx((computed + TOTAL - len(turns)) * 0.001)
    assert result["wall_s_at"] == {"100 tok/s": 60.0, "3000 tok/s": 2.0}
    verdict = {"verdict": "passed", "divergence": 0.0, "divergence_of_bf16": 1e-3, "positions": 23, "decoded": 8}
    assert "60.0 s at 100 tok/s, 2.0 s at 3000 tok/s" in show.text([result | {"accuracy": verdict}])
