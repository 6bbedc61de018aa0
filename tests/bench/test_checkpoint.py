"""A model folder that is written from a shape can be loaded, and its starts can be timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.bench.measure import checkpoint, load
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.model.config import ModelConfig
from monolane.model.load import load_model
from monolane.model.weights import expected_shapes


def small(shape: str) -> ModelConfig:
    """The family and its traits, but little of it."""
    sizes = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "vocab": 1500, "context": 512}
    return replace(SHAPES[shape], layers=2, windows=(None, None), **sizes)


@pytest.mark.parametrize(
    "shape", [name for name, config in SHAPES.items() if config.lanes is None and config.experts is None]
)
def test_a_written_folder_is_the_model_of_its_shape(shape: str, tmp_path: Path) -> None:
    config = small(shape)
    size = checkpoint.write(config, tmp_path)
    model = load_model(tmp_path)
    assert model.config == config
    assert model.tokenizer.vocab_size == config.vocab
    made_up = MadeUpWeights(config)
    for name, dimensions in expected_shapes(config):
        if len(dimensions) == 2:
            np.testing.assert_array_equal(
                model.weights.rows(name, 0, dimensions[0]), made_up.rows(name, 0, dimensions[0])
            )
        else:
            np.testing.assert_allclose(model.weights.vector(name), made_up.vector(name), rtol=1 / 128)
    assert size == sum(2 * int(np.prod(dimensions)) for _, dimensions in expected_shapes(config))


def test_two_starts_are_timed_and_the_second_finds_the_first_ones_cache(tmp_path: Path) -> None:
    checkpoint.write(small("llama-3.2-1b"), tmp_path)
    found = load.starts(tmp_path, "interpreter")
    for start in (found["first"], found["second"]):
        assert 0 < start["load_s"] <= start["first_token_s"]
        assert start["tape_bytes"] > 0
    assert found["peak_over_tape"] > 1
