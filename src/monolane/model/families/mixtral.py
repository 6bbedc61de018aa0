"""Mixtral: a Mistral with experts. The weights of the chosen ones always sum to 1. A missing window means none."""

from __future__ import annotations

from dataclasses import replace

from monolane.model.config import Experts, ModelConfig
from monolane.model.families.experts import HARMLESS, read_counts
from monolane.model.families.keys import TRAINING
from monolane.model.families.limits import CONTEXT_LIMIT
from monolane.model.families.names import huggingface_name
from monolane.model.families.rope import read_rope
from monolane.model.families.shared import Family, equal_windows
from monolane.model.settings import Settings

_THETA, _EPSILON = 1e6, 1e-5  # where a config has none

# ours: in the file
_MATRICES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def file_name(name: str) -> str:
    """``layers.3.experts.17.gate`` -> ``model.layers.3.block_sparse_moe.experts.17.w1.weight``"""
    usual = huggingface_name(name).replace(".mlp.", ".block_sparse_moe.")
    *place, matrix, ending = usual.split(".")
    return ".".join([*place, _MATRICES.get(matrix, matrix), ending])


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    window = None
    if settings.get("sliding_window") is not None:
        window = settings.integer("sliding_window", CONTEXT_LIMIT)
    count, chosen = read_counts(settings, ("num_local_experts",))
    return replace(
        plain,
        norm_eps=settings.number("rms_norm_eps", _EPSILON),
        rope=read_rope(settings, plain.head_dim, plain.context, _THETA),
        windows=equal_windows(settings, plain.layers, window),
        experts=Experts(count, chosen, plain.ffn, (True,) * plain.layers, normalised=True),
    )


FAMILY = Family(
    "mixtral",
    "MixtralForCausalLM",
    _refine,
    file_name=file_name,
    harmless={**HARMLESS, "router_jitter_noise": TRAINING},
)
