"""Qwen3: QK norm, and a head size that is not hidden / heads."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.limits import HEAD_DIM_LIMIT
from monolane.model.families.shared import Family, layer_windows
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    settings.integer("head_dim", HEAD_DIM_LIMIT)  # raises if the key is missing: hidden / heads would be wrong
    bias = settings.flag("attention_bias")
    return replace(plain, qkv_bias=bias, o_bias=bias, windows=layer_windows(settings, plain.layers))


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _refine, gguf_architecture="qwen3", qk_norm=True)
