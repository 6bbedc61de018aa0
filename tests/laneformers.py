"""Small random Laneformers: saved as the published files are, opened by us, with the logits of the PyTorch module."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import safetensors.torch
import torch

from monolane.model.config import ModelConfig
from monolane.model.huggingface import open_folder, read_folder_config
from monolane.train.laneformer import Laneformer
from random_models import RandomModel

PLAIN: dict[str, Any] = {
    "model_type": "laneformer_tp",
    "architectures": ["LaneformerForCausalLM"],
    "hidden_size": 72,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 20,
    "intermediate_size": 120,
    "vocab_size": 212,
    "max_position_embeddings": 512,
    "rope_theta": 5000.0,
    "norm_eps": 1e-5,
    "num_lanes": 4,
    "broadcast_delay": 2,
    "tie_word_embeddings": False,
}

# What differs from PLAIN.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a head of 64 for each lane": {"head_dim": 64, "num_attention_heads": 4},
    "a head of 48 for each lane": {"head_dim": 48, "num_attention_heads": 4, "lm_head_type": "vocab_parallel"},
    "two heads of 32 for each lane": {
        "head_dim": 32, "sliding_window": 19, "sliding_window_n_layers": 4, "unclamped_layers": [1],
        "use_early_comm": True,
    },
    "two lanes": {"num_lanes": 2, "broadcast_delay": 1},
    "early sums": {"use_early_comm": True},
    "delay of one": {"broadcast_delay": 1},
    "delay of three": {"broadcast_delay": 3, "use_early_comm": True},
    "no delay": {"broadcast_delay": 0},
    "no exchange": {"use_comm": False},
    "attention alone": {"use_attention_comm": True, "use_mlp_comm": False},
    "vocabulary by lanes": {"lm_head_type": "vocab_parallel"},
    "head over all lanes": {"lm_head_type": "lane"},
    "sum before the norm": {"pre_norm_lane_agg": True},
    "norms of their own": {"replicated_rmsn_scale": False},
    "tied": {"tie_word_embeddings": True, "vocab_size": 211},
    "first layers have windows": {"sliding_window": 19, "sliding_window_n_layers": 4, "unclamped_layers": [1]},
    "last layers have windows": {"sliding_window": 30, "sliding_window_n_layers": -3},
    "listed layers have windows": {"sliding_window": 11, "swa_layers": [0, 5]},
    "mixed, with windows": {
        "sliding_window": 19, "sliding_window_n_layers": 4, "unclamped_layers": [1], "use_early_comm": True,
        "lm_head_type": "vocab_parallel", "replicated_rmsn_scale": False, "tie_word_embeddings": True,
    },
    "mixed, head over all lanes": {"lm_head_type": "lane", "use_mlp_comm": False, "broadcast_delay": 3},
    "mixed, sums": {"pre_norm_lane_agg": True, "num_lanes": 2, "broadcast_delay": 1, "vocab_size": 211},
}  # fmt: skip


@cache
def laneformer(variant: str, length: int = 100, early_sends: bool = True) -> RandomModel:
    """``early_sends``: no key of a config, see LaneConfig."""
    folder = Path(mkdtemp(prefix="laneformer"))
    (folder / "config.json").write_text(json.dumps(PLAIN | VARIANTS[variant]))
    config = _with(read_folder_config(folder), early_sends)
    torch.manual_seed(len(variant))
    module = Laneformer(config).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            parameter.copy_(parameter.bfloat16())  # what the files hold
        tokens = torch.randint(0, config.vocab, (length,), generator=torch.Generator().manual_seed(1))
        logits = module(tokens[None])[0].numpy()
    state = {name: value.bfloat16().clone() for name, value in module.state_dict().items()}
    if config.tied:
        del state["lm_head.weight"]
    safetensors.torch.save_file(state, folder / "model.safetensors")
    ours, weights = open_folder(folder)
    return RandomModel(folder, _with(ours, early_sends), weights, tokens.tolist(), logits)


def _with(config: ModelConfig, early_sends: bool) -> ModelConfig:
    assert config.lanes is not None
    return replace(config, lanes=replace(config.lanes, early_sends=early_sends))
