"""Qwen2-MoE: Qwen2 with experts, and one expert that is chosen for every token. Windows are those of every other one of
the lower layers."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.experts import HARMLESS, gguf_experts, read_qwen_experts
from monolane.model.families.limits import FFN_LIMIT, LAYERS_LIMIT
from monolane.model.families.shared import Family, switched_window, windows_by_kind
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    window = switched_window(settings)
    below = 0 if settings.get("max_window_layers") == 0 else settings.integer("max_window_layers", LAYERS_LIMIT, 28)
    usual = tuple(window if layer % 2 == 0 and layer < below else None for layer in range(plain.layers))
    experts = read_qwen_experts(settings, plain.layers, ("num_experts",))
    shared = settings.integer("shared_expert_intermediate_size", FFN_LIMIT)
    return replace(
        plain,
        qkv_bias=settings.flag("qkv_bias", True),
        windows=windows_by_kind(settings, plain.layers, window, usual),
        experts=replace(experts, shared_ffn=shared) if experts else None,
    )


def _refine_gguf(settings: Settings, plain: ModelConfig) -> ModelConfig:
    shared = settings.integer("expert_shared_feed_forward_length", FFN_LIMIT, default=plain.ffn)
    return replace(plain, experts=replace(gguf_experts(settings, plain, normalised=False), shared_ffn=shared))


FAMILY = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    _refine,
    gguf_architecture="qwen2moe",
    gguf_refine=_refine_gguf,
    qkv_bias=True,
    harmless=HARMLESS,
)
