"""How made-up routers spread tokens over experts: evenly, or as skewed as those of trained models.

The logits of a made-up router are about normally distributed, and equal for no two tokens, because the embedding is
large (``shapes.MadeUpWeights``). With the same standard deviation for all experts, all are chosen equally often. An
expert whose logits have a larger one is among the highest more often: this gives every expert the frequency that is
wanted, also where a router has no biases.

The frequencies of a skewed router are an assumption: the r-th most used expert of a layer has 1 / sqrt(r) of those of
the most used one. Of 8 of 128 experts the most used one is then chosen for 38% of the tokens, 6 times its even share.
Published counters of Qwen3-30B-A3B (github.com/kekzl/imp, pull request 1741) show 7 times over 30 requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import Experts

EVEN, SKEWED = "even", "skewed"
ROUTINGS = (EVEN, SKEWED)
_MOST = 0.49  # of the tokens: a logit around zero is positive for half of them


def frequencies(experts: Experts) -> NDArray[np.float64]:
    """The shares of the tokens for which a skewed router chooses each expert, the most used one first."""
    ranks = 1 / np.sqrt(np.arange(1, experts.count + 1))
    shares: NDArray[np.float64] = np.minimum(experts.chosen * ranks / ranks.sum(), _MOST)
    return shares


def skewed_scales(experts: Experts, seed: int) -> NDArray[np.float32]:
    """The factors of the rows of a router, in an order of its own for every seed: with its factor, each logit is above
    a common threshold as often as wanted."""
    normal = NormalDist()
    threshold = normal.inv_cdf(1 - min(experts.chosen / experts.count, _MOST))
    scales = [threshold / normal.inv_cdf(1 - share) for share in frequencies(experts)]
    return np.random.default_rng(seed).permutation(np.array(scales, np.float32))


def shared_experts(choices: Sequence[NDArray[np.int64]], count: int) -> float:
    """How many of their experts two tokens have in common, on average over all pairs and layers; ``choices`` are those
    of each layer, [token][chosen]. Unlike the share of the most used expert, a few tokens show it without bias."""
    found = []
    for chosen in choices:
        tokens, used = len(chosen), np.bincount(chosen.ravel(), minlength=count)
        found.append(float((used * (used - 1)).sum()) / (tokens * (tokens - 1)))
    return float(np.mean(found))


def shared_if_even(experts: Experts) -> float:
    return experts.chosen**2 / experts.count
