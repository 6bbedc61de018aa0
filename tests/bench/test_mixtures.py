"""Made-up weights in low-bit formats."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monolane.bench.measure.mixtures import MIXTURES, Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES
from monolane.errors import UsageError

CONFIG = SHAPES["llama-3.2-1b"]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_rows_are_the_same_however_they_are_read(mixture: str) -> None:
    """And they have about the magnitude that keeps activations where they are."""
    weights = MadeUpMixture(CONFIG, mixture)
    whole = weights.quants("layers.3.o", 0, 40)
    for start, stop in ((0, 7), (7, 40), (39, 40)):
        part = weights.quants("layers.3.o", start, stop)
        for ours, theirs in zip(whole.cut(slice(start, stop)).arrays, part.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert 0.9 < whole.values(CONFIG.hidden).std() * np.sqrt(CONFIG.hidden) < 1.1


def test_q4_k_m_has_the_formats_of_such_a_file() -> None:
    """Of the 16 layers, the first two, the last two and every third of the others have v and down in Q6_K."""
    weights = MadeUpMixture(CONFIG, Q4_K_M)
    better = [layer for layer in range(CONFIG.layers) if weights.format(f"layers.{layer}.v").name == "i6k16"]
    assert better == [0, 1, 4, 7, 10, 13, 14, 15]
    assert Counter(weights.format(f"layers.{layer}.q").name for layer in range(CONFIG.layers)) == {"u4k32": 16}
    assert weights.format("embed").name == "i6k16"


def test_an_unknown_mixture_is_refused() -> None:
    with pytest.raises(UsageError, match="no mixture 'q3'"):
        MadeUpMixture(CONFIG, "q3")
