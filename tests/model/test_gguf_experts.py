"""GGUF files with experts: their config and their weights, whatever they are stored as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import GgufModel

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.gguf_weights import open_gguf
from monolane.model.quantise import quantised
from monolane.model.weights import check_weights, matrix_values
from monolane.target import open_target

Kind = gguf.GGMLQuantizationType
COUNT = 3


@pytest.mark.parametrize(
    ("architecture", "kind", "family"),
    [
        ("llama", Kind.Q4_K, "mixtral"),
        ("qwen3moe", Kind.Q6_K, "qwen3_moe"),
        ("qwen2moe", Kind.Q8_0, "qwen2_moe"),
        ("gpt-oss", Kind.MXFP4, "gpt_oss"),
    ],
)
def test_experts_are_read_as_they_are_stored(tmp_path: Path, architecture: str, kind: Kind, family: str) -> None:
    model = GgufModel(architecture, kind, COUNT)
    if kind is Kind.MXFP4:
        for data, stored in model.tensors.values():
            if stored is kind:
                data.reshape(-1, 17)[:, 0] = 120  # the exponents of scales
        model.metadata |= {"attention.sliding_window": 128, "expert_gating_func": 3}
    config, weights, _ = open_gguf(model.write(tmp_path / "model.gguf"))
    check_weights(config, weights)
    assert config.family == family
    experts = config.experts
    assert experts is not None
    assert (experts.count, experts.chosen, experts.ffn, experts.layers) == (COUNT, 2, 256, (True, True))
    assert experts.normalised == (architecture != "qwen2moe")
    assert experts.biased == config.sinks == (architecture == "gpt-oss")
    names = {f"experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")} | {"router": "ffn_gate_inp"}
    if architecture == "qwen2moe":
        assert experts.shared_ffn == 512
        names |= {f"shared.{part}": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
        names["shared_router"] = "ffn_gate_inp_shexp"
    for name, stored in names.items():
        rows, cols = weights.shape(f"layers.1.{name}")
        found = matrix_values(weights, f"layers.1.{name}", 0, rows)
        wanted = model.values(f"blk.1.{stored}.weight").reshape(rows, cols)
        exact = weights.format(f"layers.1.{name}").is_low_bit or name == "router"
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if exact else 1 / 256, atol=1e-7)
    if architecture == "gpt-oss":
        assert config.windows == (128, None)
        assert experts.gate.limit == 7.0
        vectors = {
            "sinks": "attn_sinks.weight",
            "experts.gate.bias": "ffn_gate_exps.bias",
            "router.bias": "ffn_gate_inp.bias",
        }
        vectors |= {"ffn_norm": "post_attention_norm.weight", "experts.down.bias": "ffn_down_exps.bias"}
        for name, stored in vectors.items():
            np.testing.assert_array_equal(
                weights.vector(f"layers.1.{name}"), model.values(f"blk.1.{stored}").reshape(-1)
            )
    # --weights leaves what is low-bit as it is, and routers too.
    eight = quantised(weights, "q8")
    for name in ("layers.1.experts.up", "layers.1.router"):
        assert eight.format(name) == weights.format(name)
    target = open_target(config, weights, device="interpreter", workers=1, context=32)
    assert np.isfinite(target.logits([1, 2, 3])).all()


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("qwen3moe", "expert_weights_norm", False),
        ("qwen3moe", "expert_used_count", 4),
        ("qwen3moe", "expert_count", 0),
        ("qwen3moe", "expert_weights_scale", 2.5),
        ("qwen3moe", "expert_gating_func", 2),
        ("qwen3moe", "expert_shared_count", 1),
        ("gpt-oss", "expert_gating_func", 2),
        ("llama", "expert_group_count", 4),
    ],
)
def test_what_changes_the_numbers_is_refused(tmp_path: Path, architecture: str, key: str, value: Any) -> None:
    model = GgufModel(architecture, Kind.F32, COUNT)
    model.metadata[key] = value
    with pytest.raises((ModelFileError, UnsupportedModelError), match=f"{architecture}.{key}") as caught:
        open_gguf(model.write(tmp_path / "model.gguf"))
    assert caught.value.hint


def test_a_dense_family_has_no_experts(tmp_path: Path) -> None:
    model = GgufModel("qwen3")
    model.metadata["expert_count"] = 4
    with pytest.raises(UnsupportedModelError, match="mixture of experts"):
        open_gguf(model.write(tmp_path / "model.gguf"))
