"""A model folder that is written from a shape is what the family publishes: we and transformers load the same model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from monolane.bench.measure import checkpoint
from monolane.bench.measure.mixtures import Q4_K_M, MadeUpMixture, made_up, published
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.errors import ResourceError, UsageError
from monolane.model.config import Experts, ModelConfig
from monolane.model.families.gpt_oss import alternating
from monolane.model.families.rope import yarn_rope
from monolane.model.load import load_model
from monolane.model.weights import Weights, expected_shapes
from monolane.target import open_target

SIZES: dict[str, Any] = {
    "hidden": 64,
    "layers": 3,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 96,
    "vocab": 1500,
    "context": 512,
    "windows": (None,) * 3,
}


def small(shape: str, **others: Any) -> ModelConfig:
    """The family and its traits, but little of it; numbers of experts that divide by nothing."""
    whole = SHAPES[shape]
    if whole.family == "gpt_oss":
        assert whole.experts is not None
        experts = replace(whole.experts, count=5, chosen=3, ffn=96, layers=(True,) * 3)
        rope = yarn_rope(whole.rope.theta, 32.0, head_dim=16, original_context=4096, truncate=False)
        return replace(whole, **SIZES | {"windows": alternating(3, 19), "rope": rope, "experts": experts} | others)
    if whole.experts is not None:
        # A dense layer among them.
        experts = replace(whole.experts, count=7, chosen=2, ffn=25, layers=(True, False, True))
        return replace(whole, **SIZES | {"experts": experts} | others)
    return replace(whole, **SIZES | others)


def other_families() -> dict[str, ModelConfig]:
    """Families with experts, or with windows, that no shape has."""
    qwen3 = small("qwen3-30b-a3b")
    mixtral = Experts(5, 2, SIZES["ffn"], (True,) * 3, normalised=True)
    qwen2 = Experts(5, 2, 25, (False, True, True), normalised=False, shared_ffn=40)
    return {
        "mixtral": replace(qwen3, family="mixtral", qk_norm=False, experts=mixtral, windows=(19,) * 3),
        "qwen2-moe": replace(qwen3, family="qwen2_moe", qk_norm=False, qkv_bias=True, experts=qwen2),
        "mistral-window": small("mistral-7b", windows=(19, None, 19)),
        "qwen3-biases": small("qwen3-0.6b", qkv_bias=True, o_bias=True),
    }


CONFIGS = {name: small(name) for name, config in SHAPES.items() if config.lanes is None} | other_families()


@pytest.fixture(autouse=True)
def _several_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """In small pieces, the last of which are smaller."""
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 200_000)
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 5_000)


def assert_same(ours: Weights, theirs: Weights, config: ModelConfig) -> None:
    for name, shape in expected_shapes(config):
        if len(shape) == 1:
            np.testing.assert_array_equal(ours.vector(name), theirs.vector(name), name)
            continue
        assert ours.format(name) == theirs.format(name), name
        np.testing.assert_array_equal(ours.rows(name, 0, shape[0]), theirs.rows(name, 0, shape[0]), name)
        if ours.format(name).is_low_bit:
            mine, other = (weights.quants(name, 0, shape[0]) for weights in (ours, theirs))
            for one, two in zip(mine.arrays, other.arrays, strict=True):
                np.testing.assert_array_equal(one, two, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_written_folder_is_the_model_of_its_shape_bit_by_bit(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    weights = made_up(config, published(config))
    size = checkpoint.write(config, weights, tmp_path)
    model = load_model(tmp_path)
    assert model.config == config
    assert model.tokenizer.vocab_size == config.vocab
    assert model.dtype == (published(config) or "bf16")
    assert_same(model.weights, weights, config)
    shards = list(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert 0 < sum(shard.stat().st_size for shard in shards) - size < 100_000  # headers


@pytest.mark.parametrize("shape", ["gpt-oss-120b", "qwen3-30b-a3b"])
def test_transformers_reads_the_same_model(shape: str, tmp_path: Path) -> None:
    """Which widens MXFP4 on a CPU; our input of such matrices is rounded to 15 bits."""
    config = CONFIGS[shape]
    checkpoint.write(config, made_up(config, published(config)), tmp_path)
    judge = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    tokens = np.random.default_rng(0).integers(0, config.vocab, 40).tolist()
    with torch.no_grad():
        wanted = judge(torch.tensor([tokens])).logits[0].numpy()
    model = load_model(tmp_path)
    target = open_target(model.config, model.weights, device="interpreter", context=64, cache_format="f32")
    np.testing.assert_allclose(target.logits(tokens), wanted, atol=3e-3, rtol=0)
    target.close()


def test_low_bit_matrices_that_folders_do_not_have_are_widened(tmp_path: Path) -> None:
    config = small("llama-3.2-1b", hidden=256)
    weights = MadeUpMixture(config, Q4_K_M)
    checkpoint.write(config, weights, tmp_path)
    found = load_model(tmp_path).weights
    assert weights.format("layers.1.up").is_low_bit
    np.testing.assert_array_equal(found.rows("layers.1.up", 0, 96), weights.rows("layers.1.up", 0, 96))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SHAPES["laneformer-2b"], "with lanes"),
        (small("llama-3.2-1b", windows=(19, None, None)), "family llama cannot say"),
        (small("mistral-7b", windows=(19, 20, 21)), "family mistral cannot say"),
        (small("gpt-oss-20b", rope=SHAPES["gpt-oss-20b"].rope), "family gpt_oss cannot say"),
    ],
)
def test_what_no_folder_can_hold_is_refused(config: ModelConfig, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        checkpoint.write(config, MadeUpWeights(config), tmp_path)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_experts_of_gpt_oss_are_written_in_mxfp4_alone(tmp_path: Path) -> None:
    config = CONFIGS["gpt-oss-20b"]
    with pytest.raises(UsageError, match="has its experts in MXFP4"):
        checkpoint.write(config, MadeUpWeights(config), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    config = CONFIGS["gpt-oss-20b"]
    with pytest.raises(ResourceError, match="Not enough disk space") as caught:
        checkpoint.write(config, made_up(config, published(config)), tmp_path)
    assert "TMPDIR" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())
