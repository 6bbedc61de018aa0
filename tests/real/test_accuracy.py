"""The accuracy gate: on real text, our logits are at least as near to fp32 as those of transformers in bf16."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_text import TEXT

from monolane.model.load import load_model
from monolane.program import tape_store
from monolane.target import open_target
from oracle import Logits, Verdict, judge, pass_gate
from thorough import thorough

INTERPRETED = 48  # tokens; the interpreter needs seconds for a few dozen
LARGER = 64  # tokens; the larger model needs ten times as long for each


@pytest.fixture(scope="module")
def default_verdict(default_model_path: Path) -> Verdict:
    return judge(default_model_path, tokens_of(default_model_path))


def tokens_of(path: Path) -> list[int]:
    return load_model(path).tokenizer.encode(TEXT)


def our_logits(path: Path, device: str, tokens: list[int]) -> Logits:
    model = load_model(path)
    target = open_target(model.config, model.weights, device=device, context=512)
    try:
        return target.logits(tokens)
    finally:
        target.close()


def test_the_default_model(default_model_path: Path, default_verdict: Verdict) -> None:
    pass_gate(default_verdict, our_logits(default_model_path, "cpu", tokens_of(default_model_path)))


@thorough
def test_the_default_model_in_the_interpreter(default_model_path: Path, default_verdict: Verdict) -> None:
    tokens = tokens_of(default_model_path)[:INTERPRETED]
    pass_gate(default_verdict, our_logits(default_model_path, "interpreter", tokens))


@thorough
def test_the_larger_model(coder_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_store, "_has_room", lambda _: False)  # nobody reads its 3 GB again
    tokens = tokens_of(coder_model_path)[:LARGER]
    pass_gate(judge(coder_model_path, tokens), our_logits(coder_model_path, "cpu", tokens))
