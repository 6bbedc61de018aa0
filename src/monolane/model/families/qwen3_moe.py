"""Qwen3-MoE: Qwen3 with experts. A window, where it is switched on, is that of all layers."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.experts import HARMLESS, read_qwen_experts
from monolane.model.families.limits import HEAD_DIM_LIMIT
from monolane.model.families.shared import Family, switched_window
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    settings.integer("head_dim", HEAD_DIM_LIMIT)  # raises if the key is missing: hidden / heads would be wrong
    bias = settings.flag("attention_bias")
    window = switched_window(settings)
    return replace(
        plain,
        qkv_bias=bias,
        o_bias=bias,
        windows=(window,) * plain.layers,
        experts=read_qwen_experts(settings, plain.layers),
    )


FAMILY = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    _refine,
    gguf_architecture="qwen3moe",
    qk_norm=True,
    harmless=HARMLESS,
)
