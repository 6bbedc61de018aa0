"""The config.json of a shape: the keys with which its family is published, and from which it is read again."""

from __future__ import annotations

from typing import Any

from monolane.errors import ModelFileError, UnsupportedModelError, UsageError
from monolane.model.config import Experts, ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.settings import Settings

# Of gpt-oss, the only shapes whose RoPE is scaled.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def settings(config: ModelConfig) -> dict[str, Any]:
    """The content of config.json. Raises where these keys do not describe the shape."""
    family = next(family for family in FAMILIES if family.name == config.family)
    values = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "dtype": "bfloat16",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied,
        # Without this key transformers gives a Mistral model a window of 4,096 tokens.
        "sliding_window": next((window for window in config.windows if window), None),
    }
    if any(config.windows):
        values["layer_types"] = ["sliding_attention" if window else "full_attention" for window in config.windows]
    if config.rope.factors is not None:
        values["rope_scaling"] = _YARN
    if config.o_bias:
        values["attention_bias"] = True
    if config.experts is not None:
        values |= _expert_keys(config, config.experts)
    try:
        found = family.huggingface_config(Settings(values, "config.json"))
    except (ModelFileError, UnsupportedModelError) as error:
        raise _not_described(config) from error
    if found != config:
        raise _not_described(config)
    return values


def _expert_keys(config: ModelConfig, experts: Experts) -> dict[str, Any]:
    if config.family == "gpt_oss":
        counts = {"num_local_experts": experts.count, "num_experts_per_tok": experts.chosen}
        return counts | {"swiglu_limit": experts.gate.limit, "quantization_config": _MXFP4}
    if config.family == "mixtral":
        return {"num_local_experts": experts.count, "num_experts_per_tok": experts.chosen}
    values = {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.ffn,
        "norm_topk_prob": experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, sparse in enumerate(experts.layers) if not sparse],
    }
    return values | ({"shared_expert_intermediate_size": experts.shared_ffn} if experts.shared_ffn else {})


def _not_described(config: ModelConfig) -> UsageError:
    return UsageError(
        f"No model folder can be written for this shape: a config.json of the family {config.family} cannot say what "
        "its attention windows, RoPE, biases or experts are.",
        "Choose another shape.",
    )
