"""Llama 2, 3, 3.1 and 3.2, and what is built like it: SmolLM2, TinyLlama."""

from __future__ import annotations

from dataclasses import replace

from monolane.errors import UnsupportedModelError
from monolane.model.config import ModelConfig
from monolane.model.families.shared import CONTEXT_LIMIT, Family, windows_by_kind
from monolane.model.settings import Settings


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    _refuse_windows(settings, plain)
    bias = settings.flag("attention_bias")
    return replace(plain, qkv_bias=bias, o_bias=bias, mlp_bias=settings.flag("mlp_bias"))


def _refuse_windows(settings: Settings, plain: ModelConfig) -> None:
    """A Llama has no windows; but transformers' cache takes them from any config, and forgets what lies outside."""
    window = settings.get("sliding_window")
    if window is not None:
        window = settings.integer("sliding_window", CONTEXT_LIMIT)
    windows = windows_by_kind(settings, plain.layers, window, (window,) * plain.layers)
    if any(window is not None and window < plain.context for window in windows):
        raise UnsupportedModelError(
            f"{settings.source}: sliding_window is {window}, which a model of the family llama cannot have.",
            "Remove the key if the model was trained without windows; if with them, its model_type should be mistral.",
        )


# GGUF files of Mistral models say "llama" too.
FAMILY = Family("llama", "LlamaForCausalLM", _refine, gguf_architecture="llama", gguf_interleaved=True)
