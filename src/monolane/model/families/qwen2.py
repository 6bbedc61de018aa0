"""Qwen2 and Qwen2.5: biases on q, k and v; sliding windows in the upper layers if ``use_sliding_window`` is true."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.shared import Family, layer_windows
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    return replace(plain, windows=layer_windows(settings, plain.layers))


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _refine, gguf_architecture="qwen2", qkv_bias=True)
