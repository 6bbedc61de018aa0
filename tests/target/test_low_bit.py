"""Low-bit matrices: every format in every target, against transformers in fp32 on the widened weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from low_bit import LowBitWeights
from monolane.model.format import BF16, FORMATS, QuantRows
from monolane.model.weights import expected_shapes
from monolane.target import open_target
from monolane.target.base import Target
from monolane.target.cpu import machine
from oracle import Verdict, judge_weights, near_enough
from random_models import CASES, Case, random_model
from thorough import seldom, thorough

LOW_BIT = [format for format in FORMATS.values() if format.is_low_bit]
TOKENS = 40

# Formats of the matrices of a model, by turns: every format in some shape; q, k and v of a layer in different ones.
MIXTURES = {
    "qwen2-96": ("u4g32m", "i8g32", "i4g32", "nl4g32", "i5g32"),
    "qwen2-64": ("u4k32", "i6k16", "u4k32", "e4m3k128", "u5k32", "bf16"),
    "qwen3-96-seven-kv-heads": ("u4g32z", "nl4k16", "u5g32m", "i4k16", "i8g32z", "fp4e32"),
    "llama-96-biases": ("e4m3k128",),
}
# Columns: 576 are two super-blocks and two groups, 320 one and two; 417, 260 and 196 are not even whole groups.
SHAPES = {case.name: case for case in CASES if case.name in MIXTURES}
USUAL = [name if name != "llama-96-biases" else seldom(name) for name in MIXTURES]  # FP8 is in another one as well


def small(name: str) -> Case:
    """Two layers are enough for stages of several formats."""
    return replace(SHAPES[name], name=f"{name}-low-bit", layers=min(SHAPES[name].layers, 2))


@cache
def model(name: str) -> tuple[LowBitWeights, Verdict]:
    """Its weights, and what transformers makes of them."""
    made = random_model(small(name), TOKENS)
    matrices = [matrix for matrix, shape in expected_shapes(made.config) if len(shape) == 2]
    weights = LowBitWeights(made.weights, matrices, [FORMATS[name] for name in MIXTURES[name]])
    return weights, judge_weights(made.config, weights, made.tokens)


def open_model(name: str, device: str, workers: int = 2, lanes: int | None = None) -> tuple[Target, list[int]]:
    made = random_model(small(name), TOKENS)
    weights, _ = model(name)
    target = open_target(
        made.config, weights, device=device, workers=workers, context=64, cache_format="f32", lanes=lanes
    )
    return target, made.tokens


def test_every_format_is_in_some_mixture() -> None:
    used = {FORMATS[name] for mixture in MIXTURES.values() for name in mixture}
    assert used == {*LOW_BIT, BF16}


@pytest.mark.parametrize("name", USUAL)
def test_logits_are_as_near_as_those_of_bf16(name: str) -> None:
    """The interpreter and the kernel, which differ by the rounding of fp32 sums, and by an activation that lies between
    two integers here and there."""
    oracle, tokens = open_model(name, "interpreter")
    target, _ = open_model(name, "cpu")
    theirs, ours = oracle.logits(tokens), target.logits(tokens)
    numbers = [near_enough(model(name)[1], logits) for logits in (theirs, ours)]
    assert max(each["divergence"] for each in numbers) < 0.1 * numbers[0]["divergence_of_bf16"]
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()
    np.testing.assert_array_equal(target.logits(tokens), ours)
    target.close()


@pytest.mark.parametrize("name", ["qwen2-96", seldom("llama-96-biases")])
def test_an_activation_of_a_thousand_times_the_others(name: str) -> None:
    """Where the input becomes integers, it is in a group with 31 others, which lose most of their bits."""
    made, (weights, _) = random_model(small(name), TOKENS), model(name)
    outlying = Outlying(weights.inner, weights.names, weights.formats)
    target = open_target(made.config, outlying, device="cpu", workers=2, context=64, cache_format="f32")
    near_enough(judge_weights(made.config, outlying, made.tokens), target.logits(made.tokens))
    target.close()


class Outlying(LowBitWeights):
    """Every norm makes one element a thousand times as large as the others."""

    def vector(self, name: str) -> NDArray[np.float32]:
        values = super().vector(name).copy()
        if name.endswith("norm"):
            values[5] *= 1000
        return values


class Stretched(LowBitWeights):
    """Scales of v that are 2^90 times as large, and scales of o that are as much smaller."""

    def vector(self, name: str) -> NDArray[np.float32]:
        return super().vector(name) * np.float32(2.0**90 if name.endswith(".v.bias") else 1)

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        rows = super().quants(name, start, stop)
        power = {"v": 90, "o": -90}.get(name.rpartition(".")[2], 0)
        return replace(rows, blocks=rows.blocks * np.float32(2.0**power))


@thorough
def test_the_largest_scales_of_fp8_change_no_bit() -> None:
    name = "llama-96-biases"
    made, (weights, _) = random_model(small(name), TOKENS), model(name)
    target, tokens = open_model(name, "cpu")
    stretched = Stretched(weights.inner, weights.names, weights.formats)
    other = open_target(made.config, stretched, device="cpu", workers=2, context=64, cache_format="f32")
    np.testing.assert_array_equal(other.logits(tokens), target.logits(tokens))
    target.close()
    other.close()


def of_other_instructions(
    name: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits of the kernel for this machine, and of the one that the flags allow."""
    found = []
    for level in (machine.vector_level(), machine.VectorLevel("other", tuple(f"-m{flag}" for flag in flags))):
        monkeypatch.setattr(machine, "vector_level", lambda level=level: level)
        target, tokens = open_model(name, "cpu")
        found.append(target.logits(tokens))
        target.close()
    return found[0], found[1]


@pytest.mark.parametrize("name", ["qwen2-64", *map(seldom, (name for name in MIXTURES if name != "qwen2-64"))])
@pytest.mark.parametrize("flags", [machine._AVX2, machine._AVX2 + machine._AVX512], ids=["avx2", "avx512"])
def test_all_instructions_with_fma_give_the_same_bits(
    name: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not machine._processor_flags().issuperset(flags):
        pytest.skip("this processor does not have them")
    np.testing.assert_array_equal(*of_other_instructions(name, flags, monkeypatch))


@thorough
def test_without_fma_roundings_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = of_other_instructions("qwen2-64", (), monkeypatch)
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["qwen2-64", "qwen2-96"])
def test_lanes_share_low_bit_matrices(name: str) -> None:
    """Columns are divided at the edges of groups: 160 of 5 heads are not, and neither are 417 / 2; they are widened."""
    whole, tokens = open_model(name, "interpreter")
    lanes, _ = open_model(name, "interpreter", lanes=2)
    expected = whole.logits(tokens)
    assert np.abs(lanes.logits(tokens) - expected).max() < 0.05 * np.abs(expected).max()
