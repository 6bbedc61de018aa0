"""The family laneformer_tp: which configs are read, which are refused, and how its files are put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from laneformers import PLAIN, laneformer
from monolane.errors import ModelFileError, MonolaneError, UnsupportedModelError
from monolane.model.config import LaneConfig, ModelConfig
from monolane.model.huggingface import open_folder, read_folder_config
from monolane.model.weights import check_weights, from_bf16

# The keys of the published 2B model.
PUBLISHED: dict[str, Any] = PLAIN | {
    "hidden_size": 3072, "num_hidden_layers": 15, "num_attention_heads": 32, "num_key_value_heads": 16,
    "intermediate_size": 12288, "vocab_size": 32000, "max_position_embeddings": 4096, "num_lanes": 8,
    "broadcast_delay": 2, "sliding_window": 512, "sliding_window_n_layers": 10,
}  # fmt: skip
del PUBLISHED["head_dim"]


def config_of(folder: Path, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(PUBLISHED | changes))
    return read_folder_config(folder)


def test_the_published_shape(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert config.lanes == LaneConfig(count=8, delay=2)
    assert (config.heads, config.kv_heads, config.head_dim, config.tied) == (32, 16, 96, False)
    assert config.windows == (512,) * 10 + (None,) * 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_comm": False}, {"exchanges_attention": False, "exchanges_mlp": False}),
        ({"use_comm": False, "use_mlp_comm": True}, {"exchanges_attention": False}),
        ({"use_early_comm": True}, {"early_sums": True}),
        ({"broadcast_delay": 0}, {"delay": 0}),
        ({"lm_head_type": "vocab_parallel"}, {"head": "vocab_parallel"}),
        ({"lm_head_type": "lane"}, {"head": "lane"}),
        ({"pre_norm_lane_agg": True}, {"sums_before_norm": True}),
        ({"replicated_rmsn_scale": False}, {"shares_norms": False}),
    ],
)
def test_every_key_says_something(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    plain = {"count": 8, "delay": 2}
    assert config_of(tmp_path, **changes).lanes == LaneConfig(**(plain | expected))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window_n_layers": -3}, (None,) * 12 + (512,) * 3),
        ({"sliding_window_n_layers": 0}, (None,) * 15),
        ({"swa_layers": [0, 14]}, (512,) + (None,) * 13 + (512,)),
        ({"unclamped_layers": [0, 9]}, (None,) + (512,) * 8 + (None,) * 6),
        ({"sliding_window": None}, (None,) * 15),
    ],
)
def test_windows(tmp_path: Path, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert config_of(tmp_path, **changes).windows == windows


def test_one_lane_is_a_plain_transformer(tmp_path: Path) -> None:
    assert config_of(tmp_path, num_lanes=1).lanes is None


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"num_lanes": 5}, ModelFileError, "5 lanes cannot share 32 attention heads"),
        ({"num_lanes": 0}, ModelFileError, "num_lanes"),
        ({"num_lanes": None}, ModelFileError, "num_lanes is missing"),
        ({"intermediate_size": 12289}, ModelFileError, "12289 FFN rows"),
        ({"lm_head_type": "vocab_parallel", "vocab_size": 32001}, ModelFileError, "32001 tokens"),
        ({"lm_head_type": "other"}, UnsupportedModelError, "lm_head_type is 'other'"),
        ({"lm_head_type": "lane", "pre_norm_lane_agg": True}, UnsupportedModelError, "pre_norm_lane_agg"),
        ({"lm_head_type": "lane", "tie_word_embeddings": True}, ModelFileError, "cannot be tied"),
        ({"broadcast_delay": -1}, ModelFileError, "broadcast_delay"),
        ({"sliding_window_n_layers": 16}, ModelFileError, "sliding_window_n_layers"),
        ({"sliding_window_n_layers": None}, ModelFileError, "sliding_window_n_layers"),
        ({"swa_layers": [15]}, ModelFileError, "swa_layers"),
        ({"unclamped_layers": "all"}, ModelFileError, "unclamped_layers"),
        ({"use_early_comm": 1}, ModelFileError, "use_early_comm"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[MonolaneError], told: str
) -> None:
    with pytest.raises(error, match=told):
        config_of(tmp_path, **changes)


@pytest.mark.parametrize("variant", ["plain", "norms of their own", "head over all lanes", "tied"])
def test_the_weights_have_the_shapes_of_one_model(variant: str) -> None:
    model = laneformer(variant)
    check_weights(model.config, model.weights)


def test_column_parallel_matrices_are_put_side_by_side() -> None:
    model = laneformer("plain")
    stored = safetensors.torch.load_file(model.folder / "model.safetensors")["model.layers.2.attention.wo.weight"]
    lanes, rows, _ = stored.shape
    ours = from_bf16(model.weights.rows("layers.2.o", 3, rows))
    expected = np.concatenate([stored[lane].float().numpy()[3:] for lane in range(lanes)], axis=1)
    np.testing.assert_array_equal(ours, expected)


def test_a_file_of_another_number_of_lanes_is_refused(tmp_path: Path) -> None:
    folder = laneformer("plain").folder
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    values = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 240}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config, weights = open_folder(tmp_path)
    with pytest.raises(ModelFileError, match="has shape"):
        check_weights(config, weights)
