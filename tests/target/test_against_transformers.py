"""Our logits against transformers in fp32, from the same files: every family, awkward shapes, every target."""

import numpy as np
import pytest

from monolane.target import open_target
from monolane.target.base import Target
from random_models import CASES, Case, random_model
from thorough import seldom, thorough

LENGTHS = (1, 15, 16, 17, 200)  # around the border of a pass, and beyond one split of the context
# What fp32 sums in another order may differ by, of logits with a deviation of about 1.
EXACT_CACHE_TOLERANCE = 5e-4
# A bf16 cache rounds keys and values to 8 bits of precision.
BF16_CACHE_TOLERANCE = 0.15
# The cache differs by what a head is: the first case of each size.
HEADS = tuple({case.head_dim: case for case in reversed(CASES)}.values())


def open_case(case: Case, device: str, workers: int, cache_format: str) -> Target:
    model = random_model(case)
    return open_target(
        model.config, model.weights, device=device, workers=workers, context=256, cache_format=cache_format
    )


# Each is a kernel to compile. What these have, others have, too, or they themselves below, with a bf16 cache.
SELDOM = (
    *("llama-64-tied", "llama-96-biases", "qwen2-96", "qwen3-128"),
    *("mistral-128-window", "mistral-80-long-window", "mistral-64-alternating"),
)


@pytest.mark.parametrize(
    ("device", "workers", "case"),
    [
        pytest.param(
            *(device, workers, case),
            id=f"{device}-{workers}-{case.name}",
            marks=[thorough] * (device == "cpu" and case.name in SELDOM),
        )
        for device, workers in (("interpreter", 3), ("cpu", 1), ("cpu", 3))
        for case in CASES
    ],
)
def test_logits_are_those_of_transformers(case: Case, device: str, workers: int) -> None:
    model = random_model(case)
    target = open_case(case, device, workers, "f32")
    for length in LENGTHS:
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=EXACT_CACHE_TOLERANCE, rtol=0)
    target.close()


@pytest.mark.parametrize("case", [*HEADS[:2], *map(seldom, HEADS[2:])], ids=lambda case: case.name)
def test_a_bf16_cache_costs_little_and_the_same_everywhere(case: Case) -> None:
    model = random_model(case)
    cpu, oracle = open_case(case, "cpu", 2, "bf16"), open_case(case, "interpreter", 1, "bf16")
    ours, theirs = cpu.logits(model.tokens), oracle.logits(model.tokens)
    np.testing.assert_allclose(ours, model.logits, atol=BF16_CACHE_TOLERANCE, rtol=0)
    # A key that falls on the border between two bf16 numbers may be rounded differently: rarely, and by one step.
    assert np.median(np.abs(ours - theirs)) < BF16_CACHE_TOLERANCE / 50
    assert np.abs(ours - theirs).max() < BF16_CACHE_TOLERANCE
    cpu.close()


@pytest.mark.parametrize("case", [*HEADS[:2], *map(seldom, HEADS[2:])], ids=lambda case: case.name)
def test_every_number_of_workers_gives_the_same_bits(case: Case) -> None:
    model = random_model(case)
    results = []
    for workers in (1, 2, 3, 8):
        target = open_case(case, "cpu", workers, "bf16")
        results += [target.logits(model.tokens), target.logits(model.tokens)]
        target.close()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
