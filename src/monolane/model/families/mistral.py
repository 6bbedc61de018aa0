"""Mistral: a Llama whose layers may look at a sliding window, all of them or those that ``layer_types`` names."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.shared import Family, read_window, windows_by_kind
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    # The first Mistral's config could leave out its own window, 4096; later ones say null for none.
    window = read_window(settings)
    return replace(plain, windows=windows_by_kind(settings, plain.layers, window, (window,) * plain.layers))


FAMILY = Family("mistral", "MistralForCausalLM", _refine)
