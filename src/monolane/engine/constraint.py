"""Structured output: which tokens may come next, and how that reaches the target as logit biases.

A kernel decodes without the host, but only the host knows what a constraint (a JSON schema, a regular expression)
allows. So under a constraint each token is a run of its own (``engine/generation.py``), and forbidden tokens get a bias
that no logit can outweigh, which every target's sampler can apply. The random number of a token depends on seed,
position and token id alone, so a constraint that allows every token changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.program.sample import LOGIT_BITS, Sampling

OUT_OF_REACH = 32768.0  # logits; targets clamp output logits to ±2047, and penalties multiply them by 10 at most


class Constraint(Protocol):
    """The state of a grammar after the tokens that were accepted so far."""

    def allowed(self) -> NDArray[np.bool_]:
        """[vocab]: which tokens may come next. Where none may, the answer is complete."""

    def accept(self, token: int) -> None:
        """Advance by a token that was generated."""


def masked(sampling: Sampling, allowed: NDArray[np.bool_], counts: Counter[int]) -> Sampling:
    """The same sampling, among the allowed tokens only.

    ``counts`` are the tokens of the answer so far. The run of the next token has them in its prompt, so presence and
    frequency penalties, which are for the answer alone, become biases, exact to the last bit.
    """
    few_allowed = 2 * int(allowed.sum()) < len(allowed)  # name the allowed or the forbidden tokens, whichever are fewer
    named = np.flatnonzero(allowed if few_allowed else ~allowed).tolist()
    biases = dict.fromkeys(named, OUT_OF_REACH if few_allowed else -OUT_OF_REACH)
    if sampling.presence or sampling.frequency:
        for token, count in counts.items():
            penalty = (sampling.presence + count * sampling.frequency) / 2**LOGIT_BITS
            biases[token] = biases.get(token, 0.0) - penalty
    for token, value in sampling.logit_bias:
        biases[token] = biases.get(token, 0.0) + value
    return replace(sampling, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=tuple(biases.items()))
