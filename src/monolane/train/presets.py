"""Shapes with a name, as the keys of a published ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolane.errors import UsageError
from monolane.model.json_object import read_json_object

_COMMON: dict[str, Any] = {
    "model_type": "laneformer_tp",
    "architectures": ["LaneformerForCausalLM"],
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "use_comm": True,
    "use_early_comm": False,
    "lm_head_type": "replicate",
    "pre_norm_lane_agg": False,
    "replicated_rmsn_scale": True,
    "sliding_window": None,
    "sliding_window_n_layers": 0,
    "unclamped_layers": [],
}

PRESETS: dict[str, dict[str, Any]] = {
    # 11.3 M parameters, 22.6 MB in bf16: a model of Python code to try lanes with.
    "laneformer-tiny": _COMMON
    | {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 896,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
        "num_lanes": 8,
        "broadcast_delay": 2,
        "tie_word_embeddings": True,
    },
    # 26.7 M parameters: what the experiment trains. Its FFN is wide for its hidden size: one GPU trains all lanes, and
    # most of what they cost there is reading and writing their streams.
    "laneformer-27m": _COMMON
    | {
        "hidden_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
        "num_lanes": 8,
        "broadcast_delay": 2,
        "tie_word_embeddings": False,
    },
}


def config_of(model: str) -> tuple[str, dict[str, Any]]:
    """The name and the config of a preset, or of the ``config.json`` at a path."""
    if model in PRESETS:
        return model, PRESETS[model]
    path = Path(model)
    if path.suffix == ".json" and path.is_file():
        name = path.parent.resolve().name if path.stem == "config" else path.stem
        return name, dict(read_json_object(path))
    raise UsageError(f"There is no model {model}.", f"Give {', '.join(PRESETS)}, or the path of a config.json.")
