"""The Python API with the fake target below it, in this process."""

from __future__ import annotations

import monolane.target
from fake_model import encode, fake_model
from fake_target import FakeTarget
from monolane.engine.llm import LLM
from monolane.model.load import Model


def fake_llm(answer: str, context: int = 256, **model: bool | int) -> tuple[LLM, FakeTarget]:
    """An LLM that answers ``answer``, and the target below it."""
    target = FakeTarget(encode(answer), context=context, prompt_s=0.002, token_s=0.000_250)
    return llm_of(fake_model(**model), target), target


def llm_of(model: Model, target: FakeTarget) -> LLM:
    real = monolane.target.open_target
    monolane.target.open_target = lambda *_, **__: target
    try:
        return LLM(model)
    finally:
        monolane.target.open_target = real
