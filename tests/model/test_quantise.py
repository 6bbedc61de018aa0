"""--weights q8 and q4: how near quantised matrices are, and which ones are quantised."""

from __future__ import annotations

import numpy as np
import pytest

from low_bit import LowBitWeights
from monolane.errors import UnsupportedModelError, UsageError
from monolane.model.format import FORMATS
from monolane.model.quantise import Q4, Q8, QuantisedWeights, quantised, to_q4, to_q8
from monolane.model.weights import from_bf16, matrix_values
from random_models import CASES, random_model

VALUES = np.random.default_rng(0).normal(0, 0.05, (20, 75)).astype(np.float32)


def test_eight_bits_are_off_by_half_a_step_at_most() -> None:
    found = to_q8(VALUES).values(75)
    groups = np.pad(np.abs(VALUES), ((0, 0), (0, 21))).reshape(20, 3, 32).max(-1)
    step = np.repeat(groups / 127, 32, 1)[:, :75]
    assert (np.abs(found - VALUES) <= 0.51 * step).all()


def test_four_bits_are_nearer_than_the_plain_way() -> None:
    """Rounding between the smallest and the largest weight of a group is where the search begins."""
    found = to_q4(VALUES[:, :64]).values(64)
    groups = VALUES[:, :64].reshape(20, 2, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    plain = np.rint((groups - low) * 15 / (high - low)) * (high - low) / 15 + low
    error, plain_error = (np.square(each.reshape(20, 64) - VALUES[:, :64]).sum() for each in (found, plain))
    assert error < 0.97 * plain_error
    assert np.abs(to_q4(VALUES).values(75) - VALUES).max() < 0.02


def test_equal_and_zero_weights_stay_what_they_are() -> None:
    for value in (0.0, 0.5, -0.25):
        same = np.full((1, 32), value, np.float32)
        np.testing.assert_allclose(to_q4(same).values(32), same)
        np.testing.assert_allclose(to_q8(same).values(32), same, rtol=1e-3)


def test_matrices_of_sixteen_bits_are_quantised_and_no_others() -> None:
    model = random_model(CASES[3])
    stored = LowBitWeights(model.weights, ["layers.0.q"], [FORMATS["i6k16"]])
    weights = quantised(stored, "q4")
    assert [weights.format(name) for name in ("layers.0.q", "layers.0.k", "embed")] == [FORMATS["i6k16"], Q4, Q8]
    assert quantised(stored, "q8").format("layers.0.k") == Q8
    assert quantised(stored, None) is stored
    assert isinstance(weights, QuantisedWeights)
    assert weights.identity != quantised(stored, "q8").identity
    rows, _ = weights.shape("layers.0.k")
    exact = from_bf16(model.weights.rows("layers.0.k", 0, rows))
    assert np.abs(matrix_values(weights, "layers.0.k", 0, rows) - exact).std() < 0.1 * exact.std()


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(UsageError, match="q5"):
        quantised(random_model(CASES[3]).weights, "q5")
    for value in (np.nan, 1e9):
        with pytest.raises(UnsupportedModelError, match="quantised"):
            to_q4(np.full((1, 32), value, np.float32) * np.arange(32))
