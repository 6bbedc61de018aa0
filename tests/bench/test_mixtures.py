"""Made-up weights in low-bit formats."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monolane.bench.measure.mixtures import MIXTURES, MXFP4, MXFP4_Q8, Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES
from monolane.bench.measure.subject import find_model
from monolane.errors import UsageError
from monolane.model.weights import expected_shapes
from monolane.progress import Silent
from monolane.target import plan_for

CONFIG = SHAPES["llama-3.2-1b"]


@pytest.mark.parametrize("mixture", [mixture for mixture in MIXTURES if mixture not in (MXFP4, MXFP4_Q8)])
def test_rows_are_the_same_however_they_are_read(mixture: str) -> None:
    """And they have about the magnitude that keeps activations where they are."""
    weights = MadeUpMixture(CONFIG, mixture)
    whole = weights.quants("layers.3.o", 0, 40)
    for start, stop in ((0, 7), (7, 40), (39, 40)):
        part = weights.quants("layers.3.o", start, stop)
        for ours, theirs in zip(whole.cut(slice(start, stop)).arrays, part.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert 0.9 < whole.values(CONFIG.hidden).std() * np.sqrt(CONFIG.hidden) < 1.1


def test_scales_of_mxfp4_are_powers_of_two_as_in_files() -> None:
    scales = MadeUpMixture(CONFIG, "fp4e32").quants("layers.3.o", 0, 40).scales
    assert scales.dtype == np.uint8
    smaller, larger = np.unique(scales)
    assert larger == smaller + 1


def test_q4_k_m_has_the_formats_of_such_a_file() -> None:
    """Of the 16 layers, the first two, the last two and every third of the others have v and down in Q6_K."""
    weights = MadeUpMixture(CONFIG, Q4_K_M)
    better = [layer for layer in range(CONFIG.layers) if weights.format(f"layers.{layer}.v").name == "i6k16"]
    assert better == [0, 1, 4, 7, 10, 13, 14, 15]
    assert Counter(weights.format(f"layers.{layer}.q").name for layer in range(CONFIG.layers)) == {"u4k32": 16}
    assert weights.format("embed").name == "i6k16"


def test_mxfp4_is_what_gpt_oss_is_published_as() -> None:
    """Experts alone; 3.7 and 5.0 GB are read for a token, as of the published files."""
    for shape, streamed in (("gpt-oss-20b", 3.7e9), ("gpt-oss-120b", 5.0e9)):
        _, model = find_model(None, shape, Silent())
        assert model.dtype == "mxfp4+bf16"
        assert model.weights.format("layers.3.experts.up").name == "fp4e32"
        assert not model.weights.format("layers.3.q").is_low_bit
        plan = plan_for(model.config, workers=2, formats=model.weights.format)
        assert plan.bytes_per_token == pytest.approx(streamed, rel=0.02)


def test_what_is_bf16_of_gpt_oss_can_have_8_bits() -> None:
    """Made up at once or quantised while loading, the formats are the same; 3.56 GB are read for a token."""
    config = SHAPES["gpt-oss-120b"]
    _, made_up = find_model(None, "gpt-oss-120b", Silent(), "mxfp4+q8")
    _, quantised = find_model(None, "gpt-oss-120b", Silent(), "q8")
    assert made_up.dtype == quantised.dtype == "mxfp4+q8"
    for name, shape in expected_shapes(config):
        if len(shape) == 2:
            assert made_up.weights.format(name) == quantised.weights.format(name), name
    assert made_up.weights.format("layers.3.experts.up").name == "fp4e32"
    assert made_up.weights.format("layers.3.q").name == made_up.weights.format("head").name == "i8g32"
    assert not made_up.weights.format("layers.3.router").is_low_bit
    plan = plan_for(config, workers=2, formats=made_up.weights.format)
    assert plan.bytes_per_token == pytest.approx(3.56e9, rel=0.01)


def test_an_unknown_mixture_is_refused() -> None:
    with pytest.raises(UsageError, match="no mixture 'q3'"):
        MadeUpMixture(CONFIG, "q3")
    with pytest.raises(UsageError, match="has none"):
        MadeUpMixture(CONFIG, MXFP4)
