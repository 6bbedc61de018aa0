"""Experts that a folder has one by one are one matrix, in one format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from monolane.errors import ModelFileError
from monolane.model.huggingface import open_folder
from monolane.model.load import load_config_and_formats
from monolane.model.weights import check_weights, from_bf16, matrix_values
from random_models import MIXTURES, random_model

CASE = next(case for case in MIXTURES if case.family == "Qwen3Moe")
COUNT, FFN = 13, 53
PREFIX = "model.layers.2.mlp.experts."


def stored(part: str) -> list[torch.Tensor]:
    tensors = load_file(random_model(CASE, 300).folder / "model.safetensors")
    return [tensors[f"{PREFIX}{expert}.{part}_proj.weight"] for expert in range(COUNT)]


def test_the_rows_of_all_experts_follow_each_other() -> None:
    weights = random_model(CASE, 300).weights
    wanted = torch.cat(stored("up")).float().numpy()
    assert weights.shape("layers.2.experts.up") == (COUNT * FFN, CASE.hidden)
    for start, stop in ((0, COUNT * FFN), (50, 60), (FFN, 2 * FFN), (FFN - 1, 4 * FFN + 1), (7, 8)):
        np.testing.assert_array_equal(from_bf16(weights.rows("layers.2.experts.up", start, stop)), wanted[start:stop])


def folder_with(folder: Path, changed: dict[str, torch.Tensor], **config: object) -> Path:
    source = random_model(CASE, 300).folder
    save_file(load_file(source / "model.safetensors") | changed, folder / "model.safetensors")
    settings = json.loads((source / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def fp8(part: str, experts: range) -> dict[str, torch.Tensor]:
    """As Qwen3-30B-A3B-FP8 has them: a scale for each 128 rows and columns."""
    found = {}
    for expert, weight in enumerate(stored(part)):
        if expert in experts:
            base = f"{PREFIX}{expert}.{part}_proj"
            found[f"{base}.weight"] = (weight.float() * 64).to(torch.float8_e4m3fn)
            found[f"{base}.weight_scale_inv"] = torch.full((1, 1), (expert + 1) / 64)
    return found


def test_experts_in_fp8_stay_fp8_where_all_are(tmp_path: Path) -> None:
    changed = fp8("up", range(COUNT)) | fp8("down", range(COUNT - 1))
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config, weights = open_folder(folder_with(tmp_path, changed, quantization_config=quantised))
    check_weights(config, weights)
    assert weights.format("layers.2.experts.up").name == "e4m3k128"
    assert not weights.format("layers.2.experts.down").is_low_bit
    assert load_config_and_formats(tmp_path)[1]("layers.2.experts.up").name == "e4m3k128"
    wanted = torch.cat(
        [changed[f"{PREFIX}{expert}.up_proj.weight"].float() * ((expert + 1) / 64) for expert in range(COUNT)]
    )
    np.testing.assert_array_equal(
        matrix_values(weights, "layers.2.experts.up", 30, 5 * FFN), wanted[30 : 5 * FFN].numpy()
    )


def test_an_expert_of_another_size_is_refused(tmp_path: Path) -> None:
    name = f"{PREFIX}4.gate_proj.weight"
    config, weights = open_folder(folder_with(tmp_path, {name: torch.zeros(FFN + 1, CASE.hidden)}))
    with pytest.raises(ModelFileError, match="different shapes"):
        check_weights(config, weights)
