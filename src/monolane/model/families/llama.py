"""Llama 2, 3, 3.1 and 3.2, and models with the same architecture: SmolLM2, TinyLlama."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import ModelConfig
from monolane.model.families.experts import gguf_experts
from monolane.model.families.shared import Family
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    bias = settings.flag("attention_bias")
    return replace(plain, qkv_bias=bias, o_bias=bias, mlp_bias=settings.flag("mlp_bias"))


def _refine_gguf(settings: Settings, plain: ModelConfig) -> ModelConfig:
    if settings.get("expert_count") in (None, 0):
        return plain
    return replace(plain, family="mixtral", experts=gguf_experts(settings, plain, normalised=True))


# GGUF files of Mistral and Mixtral models have the architecture "llama", too.
FAMILY = Family(
    "llama",
    "LlamaForCausalLM",
    _refine,
    gguf_architecture="llama",
    gguf_refine=_refine_gguf,
    gguf_interleaved=True,
)
