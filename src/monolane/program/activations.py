"""The input of a low-bit matrix: 15-bit integers with a scale per group of 32 columns.

An integer is split into two 8-bit ones, high * 128 + low, which integer units multiply with the codes of the weights.
Integer sums are exact, so all targets agree on the sum of a group before anything is rounded. A group is rounded to 1 /
16256 of its largest value: finer than bf16 for every value that is more than 1 / 64 of it, and for smaller ones the
error is less than what bf16 loses of the largest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monolane.model.format import GROUP

LARGEST = 127 * 128  # of the integers: the high part fits 8 bits after rounding
SMALLEST = 1e-30  # a group without a larger value becomes zeros: its scale could not be divided by


def quantised(x: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Rows of activations as integers [row][group][32] and scales [row][group]; columns are padded with zeros. The
    scale of a group with a value that is not a finite number is NaN."""
    rows, cols = x.shape
    groups = np.zeros((rows, -(-cols // GROUP), GROUP), np.float32)
    groups.reshape(rows, -1)[:, :cols] = x
    largest = np.abs(groups).max(-1)
    finite = np.isfinite(largest)
    counts = finite & (largest >= SMALLEST)
    factor = np.where(counts, np.float32(LARGEST) / np.where(counts, largest, np.float32(1)), np.float32(0))
    integers = np.rint(np.where(counts[..., None], groups, np.float32(0)) * factor[..., None]).astype(np.int32)
    scales = np.where(counts, largest * np.float32(1 / LARGEST), np.where(finite, np.float32(0), np.float32(np.nan)))
    return integers, scales.astype(np.float32)


def rounded(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What the integers and scales of ``quantised`` stand for, exactly."""
    integers, scales = quantised(x)
    values: NDArray[np.float64] = integers.astype(np.float64) * scales[..., None]
    return values.reshape(len(x), -1)[:, : x.shape[1]]
