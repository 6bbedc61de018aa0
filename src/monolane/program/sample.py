"""Sampling in integers, so that every target chooses the same token, in whatever order it sums. The reference.

Output logits are converted to fixed-point logits once; penalties, temperature and the softmax are integer arithmetic.
Integer sums do not depend on their order, so a kernel may reduce in parallel and still agree with this module bit for
bit.

    fixed     = output logit in steps of 2**-20
    distance  = highest fixed logit - fixed logit, which is never negative
    weight    = 2**40 * 2**-(distance / temperature / ln 2), through a table of 256 powers and two terms of a series
    kept      = top-k, then top-p, then min-p, by distance: tokens of equal logits stay together
    time      = distance / temperature / ln 2 + log2(an exponential random number), which differs from token to token
    chosen    = the kept token with the lowest time and, of equal times, the lowest id

That is an exponential race (or, with the sign changed, Gumbel-max sampling): a token wins with a probability that is
proportional to its weight. On parallel hardware a minimum is one reduction, and dropping a token does not change the
times of the others.

Random bits are those of SplitMix64, one number for each id, started from Philox4x32-10 of (seed, position). So a seed
and a position in the sequence give the same draw on every target.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.errors import TargetError

# ..._BITS: the number of fraction bits, so that numbers are in steps of 2**-BITS.
LOGIT_BITS = 20  # of a fixed-point logit
LOGIT_LIMIT = 2047.0  # output logits beyond it are clamped, so that fixed-point logits fit 32 bits
RATE_BITS = 16  # of 1 / (temperature * ln 2)
RATE_LIMIT = 1 << 30  # temperatures below about 1e-4 all act the same
DISTANCE_LIMIT = (1 << 33) - 1  # larger distances are clamped
WEIGHT_BITS = 40  # the largest weight is 2**40
FACTOR_BITS = 16  # of the factors of the repetition penalty
SHARE_BITS = 32  # of top-p
MAX_LOGPROBS = 20
LN2_Q32 = round(math.log(2) * 2**32)  # ln 2 in steps of 2**-32
POWERS = np.array([round(2 ** (WEIGHT_BITS - i / 256)) for i in range(256)], np.uint64)  # 2**40 * 2**-(i / 256)
EXPONENT_BITS = LOGIT_BITS + RATE_BITS  # of distance * rate, which is an exponent of two
TIME_BITS = 34  # of a race time
LARGEST_TIME = (1 << 42) - 2  # later times are clamped; none of them wins, because the likeliest token is in the race
NOISE_BITS = 26  # of the log2 of an exponential random number
RANDOM_BITS = 42  # of an exponential random number
LN2_RANDOM = round(math.log(2) * 2**RANDOM_BITS)


def _steps(values: list[int]) -> NDArray[np.uint64]:
    """A table for interpolation: the upper half of a word is a value, the lower half the difference to the next."""
    return np.array([low << 32 | (high - low) for low, high in itertools.pairwise(values)], np.uint64)


# log2(1 + x) for x = 0, 1/256, …; and -ln(1 - x) / x for x = 0, 1/512, …
LOGARITHMS = _steps([round(math.log2(1 + i / 256) * 2**NOISE_BITS) for i in range(257)])
STRETCHES = _steps([round((-math.log1p(-i / 512) * 512 / i if i else 1) * 2**22) for i in range(257)])

FixedLogits = NDArray[np.int64]


def _fixed(value: float, bits: int) -> int:
    """A number in steps of 2**-bits."""
    return round(value * (1 << bits))


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of a request. The defaults are greedy; the caller has checked the values.

    The fields are the parameters as floats. The properties are the same parameters as integers, which the reference
    and all kernels use.
    """

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0  # over prompt and answer
    presence_penalty: float = 0.0  # over the answer
    frequency_penalty: float = 0.0  # over the answer
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def rate(self) -> int:
        """1 / (temperature * ln 2), in steps of 2**-16; 0 for greedy."""
        if self.greedy:
            return 0
        return min(_fixed(math.log2(math.e) / self.temperature, RATE_BITS), RATE_LIMIT)

    @property
    def top_share(self) -> int:
        """``top_p`` in steps of 2**-32."""
        return _fixed(self.top_p, SHARE_BITS)

    @property
    def min_weight(self) -> int:
        """``min_p`` as a weight: in steps of 2**-40."""
        return _fixed(self.min_p, WEIGHT_BITS)

    @property
    def repeat_up(self) -> int:
        """The factor of the repetition penalty for negative logits, in steps of 2**-16."""
        return _fixed(self.repetition_penalty, FACTOR_BITS)

    @property
    def repeat_down(self) -> int:
        """The factor of the repetition penalty for positive logits, in steps of 2**-16."""
        return round((1 << FACTOR_BITS) / self.repetition_penalty)

    @property
    def presence(self) -> int:
        """The presence penalty as a fixed-point logit."""
        return _fixed(self.presence_penalty, LOGIT_BITS)

    @property
    def frequency(self) -> int:
        """The frequency penalty as a fixed-point logit."""
        return _fixed(self.frequency_penalty, LOGIT_BITS)

    @property
    def bias(self) -> list[tuple[int, int]]:
        """(token, fixed-point logit to add) for each biased token."""
        return [(token, _fixed(value, LOGIT_BITS)) for token, value in self.logit_bias]

    @property
    def adjusts_logits(self) -> bool:
        """Whether penalties or biases change any logit."""
        neutral = self.repeat_up == self.repeat_down == 1 << FACTOR_BITS and not self.presence and not self.frequency
        return not neutral or bool(self.logit_bias)


@dataclass(frozen=True)
class Choice:
    """A sampled token, and the numbers of its logprobs: distances of fixed-point logits, and the sum of all weights at
    temperature 1."""

    token: int
    distance: int = 0
    total: int = 0
    top: tuple[tuple[int, int], ...] = ()  # (token, distance), likeliest first

    def logprob(self, distance: int) -> float:
        return float(-distance / 2**LOGIT_BITS - math.log(self.total / 2**WEIGHT_BITS))


class Sampler:
    """The reference sampler: chooses the tokens of one request one by one, and counts them for penalties."""

    def __init__(self, sampling: Sampling, vocab: int, prompt: NDArray[np.int64], logprobs: int | None = None) -> None:
        self._sampling = sampling
        self._logprobs = logprobs
        self._seen = np.zeros(vocab, bool)
        self._seen[prompt] = True
        self._counts = np.zeros(vocab, np.int64)

    def choose(self, logits: NDArray[np.float32], position: int) -> Choice:
        """Choose the token at ``position`` of the sequence."""
        raw = fixed_logits(logits)
        adjusted = self._penalised(raw)
        token = int(np.argmax(adjusted)) if self._sampling.greedy else self._draw(adjusted, position)
        self._seen[token] = True
        self._counts[token] += 1
        if self._logprobs is None:
            return Choice(token)
        distances = raw.max() - raw
        order = np.lexsort((np.arange(len(raw)), distances))[: self._logprobs]
        total = int(weights(distances, round(math.log2(math.e) * 2**RATE_BITS)).sum())
        return Choice(token, int(distances[token]), total, tuple((int(i), int(distances[i])) for i in order))

    def _penalised(self, logits: FixedLogits) -> FixedLogits:
        sampling = self._sampling
        logits = logits.copy()
        factor = np.where(logits > 0, sampling.repeat_down, sampling.repeat_up)
        logits[self._seen] = (logits * factor)[self._seen] >> FACTOR_BITS
        logits -= np.where(self._counts > 0, sampling.presence, 0) + self._counts * sampling.frequency
        for token, value in sampling.bias:
            logits[token] += value
        return logits

    def _draw(self, logits: FixedLogits, position: int) -> int:
        sampling = self._sampling
        distances = logits.max() - logits
        chances = weights(distances, sampling.rate)
        order = np.argsort(distances)
        kept = np.full(len(logits), True)
        if 0 < sampling.top_k < len(logits):
            kept = distances <= distances[order[sampling.top_k - 1]]
        if sampling.top_share < 1 << SHARE_BITS:
            order = order[: int(kept.sum())]
            running = np.cumsum(chances[order])
            needed = (int(running[-1]) * sampling.top_share) >> SHARE_BITS
            kept = distances <= distances[order[np.searchsorted(running, np.uint64(needed))]]
        kept &= chances >= sampling.min_weight
        times = race_times(distances, sampling.rate, noise(sampling.seed, position, len(logits)))
        return int(np.argmin(np.where(kept, times, LARGEST_TIME + 1)))


def fixed_logits(logits: NDArray[np.float32]) -> FixedLogits:
    """Output logits in steps of 2**-20, rounded to nearest even."""
    if np.isnan(logits).any():
        raise TargetError("The model produced logits that are not numbers.", "Its weights are probably damaged.")
    limited = np.clip(logits.astype(np.float32), -LOGIT_LIMIT, LOGIT_LIMIT)
    fixed: FixedLogits = np.rint(limited * np.float32(2**LOGIT_BITS)).astype(np.int64)
    return fixed


def weights(distances: FixedLogits, rate: int) -> NDArray[np.uint64]:
    """2**40 * 2**-(distance * rate), in integers."""
    exponent = np.minimum(distances, DISTANCE_LIMIT).astype(np.uint64) * np.uint64(rate)
    whole = exponent >> np.uint64(36)
    fraction = exponent & np.uint64((1 << 36) - 1)
    rest = ((fraction & np.uint64((1 << 28) - 1)) * np.uint64(LN2_Q32)) >> np.uint64(36)
    series = np.uint64(1 << 32) - rest + ((rest * rest) >> np.uint64(33))
    power = (POWERS[fraction >> np.uint64(28)] * (series >> np.uint64(10))) >> np.uint64(22)
    return np.where(whole > WEIGHT_BITS, np.uint64(0), power >> np.minimum(whole, np.uint64(63)))


def race_times(distances: FixedLogits, rate: int, noises: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """log2 of each token's time in the exponential race, in steps of 2**-34."""
    exponent = np.minimum(distances, DISTANCE_LIMIT).astype(np.uint64) * np.uint64(rate)
    times = (exponent >> np.uint64(EXPONENT_BITS - TIME_BITS)) + (noises << np.uint64(TIME_BITS - NOISE_BITS))
    return np.minimum(times, np.uint64(LARGEST_TIME))


def noise(seed: int, position: int, count: int) -> NDArray[np.uint64]:
    """log2(2**42 * an exponential random number) for each id, in steps of 2**-26.

    Half of all exponential random numbers are below ln 2, half of the others below 2 ln 2, and so on. So a number is
    n * ln 2 - ln(1 - x): n is the number of leading zeros of 24 random bits, and the other 40 bits are x, between 0 and
    1/2. -ln(1 - x) is computed as x times a factor from a table. That makes small numbers, which win the race, as
    precise as large ones.
    """
    bits = mixed_bits(random_bits(seed, position), count)
    doublings = np.uint64(24) - _bit_width(bits & np.uint64((1 << 24) - 1))
    x = ((bits >> np.uint64(24)) << np.uint64(1)) | np.uint64(1)  # in steps of 2**-42
    stretch = _interpolated(STRETCHES, x >> np.uint64(33), (x >> np.uint64(1)) & np.uint64(0xFFFFFFFF))
    number = doublings * np.uint64(LN2_RANDOM) + ((x * stretch) >> np.uint64(22))
    whole = _bit_width(number) - np.uint64(1)
    mantissa = (number << (np.uint64(63) - whole)) & np.uint64((1 << 63) - 1)
    fraction = (mantissa >> np.uint64(23)) & np.uint64(0xFFFFFFFF)
    return (whole << np.uint64(NOISE_BITS)) + _interpolated(LOGARITHMS, mantissa >> np.uint64(55), fraction)


def _interpolated(
    table: NDArray[np.uint64], index: NDArray[np.uint64], fraction: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Linear interpolation in a table of ``_steps``; ``fraction`` is in steps of 2**-32."""
    low, step = table[index] >> np.uint64(32), table[index] & np.uint64(0xFFFFFFFF)
    return low + ((step * fraction) >> np.uint64(32))


def _bit_width(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The number of binary digits of each integer, which must be below 2**53, so that a double holds it exactly."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.uint64)


def mixed_bits(state: int, count: int) -> NDArray[np.uint64]:
    """The first ``count`` numbers of SplitMix64 from ``state``: 64 random bits for each id."""
    bits = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def random_bits(seed: int, position: int) -> int:
    """64 random bits: the first two words of Philox4x32-10 with the seed as key and the position as counter."""
    mask = 0xFFFFFFFF
    key0, key1 = seed & mask, (seed >> 32) & mask
    c0, c1, c2, c3 = position & mask, (position >> 32) & mask, 0, 0
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ key0, second & mask, (first >> 32) ^ c3 ^ key1, first & mask
        key0, key1 = (key0 + 0x9E3779B9) & mask, (key1 + 0xBB67AE85) & mask
    return c0 | (c1 << 32)
