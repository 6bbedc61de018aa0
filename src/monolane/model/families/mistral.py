"""Mistral: a Llama whose layers may all look at a sliding window."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.shared import CONTEXT_LIMIT, Family
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    if settings.has("sliding_window") and settings.get("sliding_window") is None:
        return plain
    # The first Mistral's config could leave out its own window, 4096; later ones say null for none.
    window = settings.integer("sliding_window", CONTEXT_LIMIT, default=4096)
    return replace(plain, windows=(window,) * plain.layers)


FAMILY = Family("mistral", "MistralForCausalLM", _refine)
