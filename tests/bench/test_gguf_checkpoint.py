"""GGUF files of shapes: what is read from the file is what Monolane runs, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.bench.measure import gguf_checkpoint
from monolane.bench.measure.mixtures import ONE_TYPE, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.gguf_weights import open_gguf
from monolane.model.weights import Weights, expected_shapes

SPOKEN = {format: mixture for mixture, format in ONE_TYPE.items()}


def small(shape: str, **sizes: int) -> ModelConfig:
    usual = {"hidden": 256, "layers": 9, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512, "vocab": 300}
    usual |= sizes
    return replace(SHAPES[shape], windows=(None,) * usual["layers"], **usual)


@pytest.mark.parametrize(
    ("shape", "mixture"),
    [
        *(("llama-3.2-1b", mixture) for mixture in ("bf16", "q4_k_m")),
        *(("qwen2.5-coder-1.5b", SPOKEN.get(format, format)) for format in ("bf16", *gguf_checkpoint.PACKED)),
    ],
)
def test_the_file_has_the_same_weights(shape: str, mixture: str, tmp_path: Path) -> None:
    config = small(shape, layers=9 if mixture == "q4_k_m" else 1)
    weights: Weights = MadeUpWeights(config) if mixture == "bf16" else MadeUpMixture(config, mixture)
    size = gguf_checkpoint.write(config, weights, tmp_path / "model.gguf")
    assert 0 < (tmp_path / "model.gguf").stat().st_size - size < 50_000
    read, stored, _ = open_gguf(tmp_path / "model.gguf")
    assert replace(read, norm_eps=config.norm_eps) == config
    formats = set()
    for name, wanted in expected_shapes(config):
        if len(wanted) == 1:
            assert np.array_equal(stored.vector(name), weights.vector(name))
            continue
        formats.add(stored.format(name).name)
        assert stored.format(name) == weights.format(name)
        assert np.array_equal(stored.rows(name, 0, wanted[0]), weights.rows(name, 0, wanted[0])), name
    assert formats == ({"u4k32", "i6k16"} if mixture == "q4_k_m" else {ONE_TYPE.get(mixture, mixture)})


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for config, mixture, why in (
        (small("llama-3.2-1b", hidden=320), "q4_k_m", "blocks of 256"),
        (small("llama-3.2-1b"), "u4g32z", "no type for u4g32z"),
        (SHAPES["laneformer-2b"], "q4_k_m", "of a laneformer_tp with"),
    ):
        with pytest.raises(UsageError, match=why):
            gguf_checkpoint.write(config, MadeUpMixture(config, mixture), path)
        assert not path.exists()
