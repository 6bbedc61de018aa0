"""gpt-oss as it is published, with experts in MXFP4, against transformers with the same weights de-quantised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from monolane.errors import ModelFileError
from monolane.model.huggingface import open_folder
from monolane.model.quantise import Q8, quantised
from monolane.model.weights import check_weights, expected_shapes, matrix_values
from monolane.target import open_target
from random_models import MIXTURES, random_model

CASE = replace(next(case for case in MIXTURES if case.family == "GptOss"), name="gpt-oss-mxfp4", ffn=64)
PREFIX = "model.layers.1.mlp.experts."


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float32], list[int]]:
    """A folder with random experts in MXFP4, and what transformers makes of a text with the same weights."""
    model = random_model(CASE, 150)
    mine, twin = tmp_path_factory.mktemp("mxfp4"), tmp_path_factory.mktemp("bf16")
    tensors = load_file(model.folder / "model.safetensors")
    plain = dict(tensors)
    generator = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, cols, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(118, 122, (experts, rows, cols // 32), generator=generator).to(torch.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        plain[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
    config = json.loads((model.folder / "config.json").read_text())
    (twin / "config.json").write_text(json.dumps(config))
    scheme = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (mine / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    save_file(tensors, mine / "model.safetensors")
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})
    judge = transformers.AutoModelForCausalLM.from_pretrained(
        twin, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits: NDArray[np.float32] = judge(torch.tensor([model.tokens])).logits[0].numpy()
    ours, weights = open_folder(twin)
    check_weights(ours, weights)
    return mine, logits, model.tokens


def test_mxfp4_is_read_as_it_is_stored(published: Any) -> None:
    folder, _, _ = published
    config, weights = open_folder(folder)
    check_weights(config, weights)
    tensors = load_file(folder / "model.safetensors")
    wanted = convert_moe_packed_tensors(
        tensors[f"{PREFIX}gate_up_proj_blocks"], tensors[f"{PREFIX}gate_up_proj_scales"]
    ).float()  # [expert][column][row]
    for part, first in (("gate", 0), ("up", 1)):
        name = f"layers.1.experts.{part}"
        assert weights.format(name).name == "fp4e32"
        rows = wanted[:, :, first::2].transpose(1, 2).reshape(-1, CASE.hidden).numpy()
        np.testing.assert_array_equal(matrix_values(weights, name, 0, len(rows)), rows)
        np.testing.assert_array_equal(matrix_values(weights, name, 7, 130), rows[7:130])
    assert weights.widened == ()


def test_with_weights_q8_experts_stay_and_the_rest_is_quantised(published: Any) -> None:
    folder, _, _ = published
    config, stored = open_folder(folder)
    weights = quantised(stored, "q8")
    for name, shape in expected_shapes(config):
        if len(shape) == 2:
            kept = ".experts." in name or name.endswith("router")
            assert weights.format(name) == (stored.format(name) if kept else Q8), name
    ours, theirs = (matrix_values(each, "layers.1.experts.down", 0, 100) for each in (weights, stored))
    np.testing.assert_array_equal(ours, theirs)
    target = open_target(config, weights, device="cpu", workers=2, context=32)
    assert np.isfinite(target.logits([1, 2, 3])).all()
    target.close()


@pytest.mark.parametrize(("device", "workers"), [("interpreter", 2), ("cpu", 3)])
def test_logits_are_those_of_transformers(published: Any, device: str, workers: int) -> None:
    """The input of MXFP4 matrices is rounded to 15 bits, which is the only difference."""
    folder, wanted, tokens = published
    config, weights = open_folder(folder)
    target = open_target(config, weights, device=device, workers=workers, context=256, cache_format="f32")
    np.testing.assert_allclose(target.logits(tokens), wanted, atol=3e-3, rtol=0)
    target.close()


def test_scales_that_no_format_holds_are_widened(published: Any, tmp_path: Path) -> None:
    folder, _, _ = published
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{PREFIX}down_proj_scales"][2, 3, 1] = 1  # 2^-126
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    _, weights = open_folder(tmp_path)
    assert weights.format("layers.1.experts.gate").is_low_bit
    assert not weights.format("layers.1.experts.down").is_low_bit
    assert weights.widened == ("MXFP4 with these scales",)
    row = 2 * CASE.hidden + 3
    plain = convert_moe_packed_tensors(tensors[f"{PREFIX}down_proj_blocks"], tensors[f"{PREFIX}down_proj_scales"])
    np.testing.assert_array_equal(
        matrix_values(weights, "layers.1.experts.down", row, row + 1)[0], plain[2, :, 3].float().numpy()
    )


@pytest.mark.parametrize("name", ["down_proj_bias", "gate_up_proj_scales"])
def test_experts_that_are_missing_or_of_another_shape_are_named(published: Any, tmp_path: Path, name: str) -> None:
    folder, _, _ = published
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    whole = tensors.pop(PREFIX + name)
    for found in (None, whole[:-1].contiguous()):
        save_file(tensors | ({} if found is None else {PREFIX + name: found}), tmp_path / "model.safetensors")
        config, weights = open_folder(tmp_path)
        with pytest.raises(ModelFileError, match=name) as caught:
            check_weights(config, weights)
        assert caught.value.hint
