"""Qwen3-MoE: Qwen3 with experts. A window, where it is switched on, is that of all layers."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.experts import HARMLESS, gguf_experts, read_qwen_experts
from monolane.model.families.limits import HEAD_DIM_LIMIT
from monolane.model.families.shared import Family, equal_windows, switched_window
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    settings.integer("head_dim", HEAD_DIM_LIMIT)  # raises if the key is missing: hidden / heads would be wrong
    bias = settings.flag("attention_bias")
    window = switched_window(settings)
    return replace(
        plain,
        qkv_bias=bias,
        o_bias=bias,
        windows=equal_windows(settings, plain.layers, window),
        experts=read_qwen_experts(settings, plain.layers),
    )


def _refine_gguf(settings: Settings, plain: ModelConfig) -> ModelConfig:
    return replace(plain, experts=gguf_experts(settings, plain, normalised=True))


FAMILY = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    _refine,
    gguf_architecture="qwen3moe",
    gguf_refine=_refine_gguf,
    qk_norm=True,
    harmless=HARMLESS,
)
