"""The reference sampler follows its parameters, and its integer arithmetic is as specified."""

import doctest
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.errors import TargetError
from monolane.program.sample import (
    NOISE_BITS,
    RANDOM_BITS,
    RATE_BITS,
    TIME_BITS,
    WEIGHT_BITS,
    Sampler,
    Sampling,
    fixed_logits,
    mixed_bits,
    noise,
    race_times,
    random_bits,
    weights,
)

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 2.5, 0.0], np.float32)
NOTHING = np.array([], np.int64)


def draws(sampling: dict[str, object], count: int = 2000, logits: np.ndarray = LOGITS) -> Counter[int]:
    return Counter(
        Sampler(Sampling(seed=7, **sampling), len(logits), NOTHING).choose(logits, position).token  # type: ignore[arg-type]
        for position in range(count)
    )


def test_greedy_takes_the_highest_and_the_first_of_equals() -> None:
    assert Sampler(Sampling(), 6, NOTHING).choose(LOGITS, 0).token == 1
    assert Sampler(Sampling(), 3, NOTHING).choose(np.array([5.0, 7.0, 7.0], np.float32), 0).token == 1


def test_temperature_one_draws_from_the_softmax() -> None:
    count = 20000
    check_shares(draws({"temperature": 1.0}, count), np.exp(LOGITS), count)


def test_what_is_kept_keeps_its_ratios() -> None:
    count = 5000
    kept = np.where(LOGITS >= 2.0, np.exp(LOGITS / 0.7), 0.0)
    check_shares(draws({"temperature": 0.7, "top_k": 3}, count), kept, count)


def check_shares(found: Counter[int], expected: np.ndarray, count: int) -> None:
    """So often was every token drawn as its share of ``expected`` says, give or take five standard deviations."""
    for token, share in enumerate(expected / expected.sum()):
        deviation = math.sqrt(share * (1 - share) / count)
        assert abs(found[token] / count - share) <= 5 * deviation


def test_low_temperature_is_greedy_and_high_is_even() -> None:
    assert draws({"temperature": 1e-5}) == {1: 2000}
    assert min(draws({"temperature": 100.0}, 6000).values()) > 700


def test_top_k_top_p_and_min_p_keep_what_they_promise() -> None:
    assert set(draws({"temperature": 1.0, "top_k": 3})) == {1, 4, 2}
    assert set(draws({"temperature": 1.0, "top_k": 1})) == {1}
    # softmax: 1 has 0.43, 4 has 0.26, 2 has 0.16: the smallest run that reaches 0.6 is the first two
    assert set(draws({"temperature": 1.0, "top_p": 0.6})) == {1, 4}
    assert set(draws({"temperature": 1.0, "top_p": 1e-9})) == {1}
    # exp(2.5 - 3) = 0.61 of the likeliest, exp(2 - 3) = 0.37
    assert set(draws({"temperature": 1.0, "min_p": 0.5})) == {1, 4}
    assert set(draws({"temperature": 1.0, "min_p": 0.3})) == {1, 4, 2}


def test_tokens_of_equal_logits_stay_together() -> None:
    equals = np.array([1.0, 2.0, 1.0, 0.0, 1.0], np.float32)

    def kept(logits: np.ndarray = equals, **fields: object) -> set[int]:
        return set(draws({"temperature": 1.0, **fields}, 200, logits))

    assert kept(top_k=1) == {1}
    for top_k in (2, 3, 4):
        assert kept(top_k=top_k) == {0, 1, 2, 4}
    # softmax: 1 has 0.45, each of the three 0.17, 3 has 0.06
    assert kept(top_p=0.4) == {1}
    for top_p in (0.5, 0.7, 0.9):
        assert kept(top_p=top_p) == {0, 1, 2, 4}
    # of the three tokens that top-k keeps 1 has 0.58, and the others 0.21 each
    assert kept(equals[:4], top_k=3, top_p=0.55) == {1}
    assert kept(equals[:4], top_k=2, top_p=0.6) == {0, 1, 2}


def test_a_token_that_is_out_does_not_change_the_race_of_the_others() -> None:
    def token(position: int, **fields: object) -> int:
        sampling = Sampling(temperature=1.5, seed=7, **fields)  # type: ignore[arg-type]
        return Sampler(sampling, len(LOGITS), NOTHING).choose(LOGITS, position).token

    free = [token(position) for position in range(200)]
    for kept, fields in (
        ({1, 4, 2}, {"top_k": 3}),
        ({1, 4}, {"min_p": 0.7}),  # exp((2.5 - 3) / 1.5) = 0.72 of the likeliest
        ({0, 2, 3, 4, 5}, {"logit_bias": ((1, -100.0),)}),
    ):
        narrowed = [token(position, **fields) for position in range(200)]
        assert kept.issuperset(narrowed)
        assert {a for a, b in zip(free, narrowed, strict=True) if a != b} == set(free) - kept


def test_penalties_and_bias_move_the_choice() -> None:
    assert Sampler(Sampling(repetition_penalty=2.0), 6, np.array([1])).choose(LOGITS, 0).token == 4
    presence = Sampler(Sampling(presence_penalty=1.0), 6, np.array([1]))
    assert [presence.choose(LOGITS, i).token for i in range(4)] == [
        1,
        4,
        1,
        1,
    ]  # the prompt does not count, and it counts once
    frequency = Sampler(Sampling(frequency_penalty=0.4), 6, NOTHING)
    assert [frequency.choose(LOGITS, i).token for i in range(4)] == [1, 1, 4, 1]
    assert Sampler(Sampling(logit_bias=((5, 100.0),)), 6, NOTHING).choose(LOGITS, 0).token == 5


def test_logprobs_are_those_of_the_softmax_before_any_parameter() -> None:
    choice = Sampler(Sampling(temperature=0.3, presence_penalty=2.0), 6, NOTHING, logprobs=6).choose(LOGITS, 0)
    expected = LOGITS - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert [token for token, _ in choice.top] == [1, 4, 2, 0, 5, 3]
    for token, distance in choice.top:
        assert choice.logprob(distance) == pytest.approx(expected[token], abs=1e-5)
    assert choice.logprob(choice.distance) == pytest.approx(expected[choice.token], abs=1e-5)


def test_same_seed_and_position_same_token_another_position_another_draw() -> None:
    def tokens(seed: int) -> list[int]:
        return [
            Sampler(Sampling(temperature=1.0, seed=seed), 6, NOTHING).choose(LOGITS, position).token
            for position in range(50)
        ]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert len(set(tokens(3))) > 1


def test_random_bits_are_philox() -> None:
    # Known answer of Philox4x32-10 for key 0 and counter 0: words 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    assert random_bits(0, 0) == 0xE169C58D_6627E8D5


def test_mixed_bits_are_splitmix() -> None:
    # Known answers of SplitMix64 for seed 0.
    assert mixed_bits(0, 3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_noise_is_the_logarithm_of_an_exponential_number() -> None:
    count = 1 << 18
    bits = [int(number) for number in mixed_bits(random_bits(7, 5), count)]
    doublings = np.array([24 - (number & 0xFFFFFF).bit_length() for number in bits])
    x = np.array([2 * (number >> 24) + 1 for number in bits]) / 2**RANDOM_BITS
    exact = np.log2(doublings * math.log(2) - np.log1p(-x))
    assert np.abs(noise(7, 5, count) / 2**NOISE_BITS - RANDOM_BITS - exact).max() < 5e-6


def test_noise_is_distributed_exponentially() -> None:
    count = 1 << 18
    for position in range(3):
        numbers = np.sort(2.0 ** (noise(11, position, count) / 2**NOISE_BITS - RANDOM_BITS))
        shares = 1 - np.exp(-numbers)
        places = np.arange(count)
        distance = max((shares - places / count).max(), ((places + 1) / count - shares).max())
        assert distance < 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov: more in one of a thousand


@settings(deadline=None)
@given(st.floats(0, 1000), st.floats(0.05, 5))
def test_times_are_distances_plus_noise(distance: float, temperature: float) -> None:
    rate = Sampling(temperature=temperature).rate
    noises = noise(3, 9, 1)
    time = int(race_times(np.array([round(distance * 2**20)]), rate, noises)[0]) / 2**TIME_BITS
    expected = distance / temperature / math.log(2) + int(noises[0]) / 2**NOISE_BITS
    # Of the rate and of the logit, to half a unit each.
    rounding = 1e-5 + distance / 2 ** (RATE_BITS + 1) + 2**-21 / temperature / math.log(2)
    assert time == pytest.approx(min(expected, 256), abs=rounding)


@settings(deadline=None)
@given(st.floats(0, 30), st.floats(0.05, 5))
def test_integer_weights_are_exponentials(distance: float, temperature: float) -> None:
    rate = Sampling(temperature=temperature).rate
    weight = int(weights(np.array([round(distance * 2**20)]), rate)[0])
    expected = math.exp(-distance / temperature) * 2**WEIGHT_BITS
    rounding = math.log(2) * distance / 2 ** (RATE_BITS + 1)  # of the rate, to half a unit
    assert abs(weight - expected) <= expected * (1e-5 + rounding) + 2  # the last: integers are cut off


def test_logits_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(TargetError, match="not numbers"):
        fixed_logits(np.array([0.0, np.nan], np.float32))


def test_infinite_logits_are_limited() -> None:
    assert (
        Sampler(Sampling(temperature=1.0), 3, NOTHING).choose(np.array([-np.inf, 0.0, -np.inf], np.float32), 0).token
        == 1
    )


def test_the_examples_of_the_page_on_sampling_are_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "sampling.md"
    outcome = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert outcome.attempted
    assert not outcome.failed
