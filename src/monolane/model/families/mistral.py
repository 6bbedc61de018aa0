"""Mistral: a Llama with sliding-window attention, in all layers or in those that ``layer_types`` names."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.shared import Family, read_window, windows_by_kind
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    # A config without the key means the window of the first Mistral, 4096 tokens; null means none.
    window = read_window(settings)
    return replace(plain, windows=windows_by_kind(settings, plain.layers, window, (window,) * plain.layers))


FAMILY = Family("mistral", "MistralForCausalLM", _refine)
