"""The accuracy check that comes before any speed is measured: does the target compute the model?

The KL divergence of the target's logits from an fp32 reference, on a short text, may be at most 1.1 times that of the
same model computed in bf16. Every token that the target decodes must be the likeliest one, or its logit must be so near
to the highest that the rounding error of bf16 could have swapped the two.

Where a model has experts, a position at which two of them have nearly the same logit may get another expert from any
rounding, and then a divergence hundreds of times that of others. The mean over a few positions would only tell how many
of them there were, so the median is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure import reference, routing, timing
from monolane.errors import TargetError
from monolane.model.config import ModelConfig
from monolane.model.quantise import QuantisedWeights
from monolane.model.weights import Weights
from monolane.target.base import Target

PROMPT_TOKENS, DECODED_TOKENS = 16, 8  # one prefill pass, then decode passes
ALLOWED = 1.1  # times the divergence of bf16
NOISE = 1e-9  # nats: the rounding error of fp32, for a target that computes in fp32
BOUND = (
    "divergence (Kullback-Leibler, nats; the mean over positions, with experts the median) from an fp32 NumPy "
    "computation with the same weights <= "
    f"{ALLOWED} x that of a computation rounded to bf16 after every operation; the logit of every greedily decoded "
    "token at most twice bf16's largest error below the highest"
)

Logits = NDArray[np.float32]
Average = Callable[[NDArray[np.float64]], Any]


@dataclass(frozen=True)
class Verdict:
    """Measured over ``positions`` tokens of text. A shortfall is by how much the chosen token's logit is below the
    highest."""

    positions: int
    divergence: float  # nats
    divergence_of_bf16: float
    agreement: float  # share of the positions where the likeliest token is the same as in fp32
    agreement_of_bf16: float
    decoded: int  # tokens
    shortfall: float  # the largest of all decoded tokens
    allowed_shortfall: float
    shared_experts: float | None = None  # that two tokens have in common, on average; None: the model has no experts
    divergence_of_quantising: float | None = (
        None  # from the stored weights, both in fp32; None: these are the stored ones
    )

    @property
    def passed(self) -> bool:
        near = self.divergence <= ALLOWED * self.divergence_of_bf16 + NOISE  # False for NaN
        return near and self.shortfall <= self.allowed_shortfall

    def to_dict(self) -> dict[str, Any]:
        found = {"verdict": "passed" if self.passed else "failed", **asdict(self), "bound": BOUND}
        if self.divergence_of_quantising is None:
            del found["divergence_of_quantising"]
        return found

    def __str__(self) -> str:
        return (
            f"divergence from fp32 {self.divergence:.2e} nats (bf16: {self.divergence_of_bf16:.2e}), same likeliest "
            f"token {self.agreement:.0%} (bf16: {self.agreement_of_bf16:.0%}), worst of {self.decoded} decoded tokens "
            f"{self.shortfall:.3f} below the likeliest (allowed: {self.allowed_shortfall:.3f})"
        )


def judge(config: ModelConfig, weights: Weights, target: Target, prompt: Sequence[int]) -> Verdict:
    """Decode a few tokens, and compare the logits of target and reference for the prompt and these tokens."""
    prompt = list(prompt[:PROMPT_TOKENS])
    answer = [token.id for token in timing.ask(target, timing.fixed_length(prompt, DECODED_TOKENS)).tokens]
    text = [*prompt, *answer[:-1]]
    average = np.mean if config.experts is None else np.median
    truth = reference.read(config, weights, text)
    verdict = compare(truth, target.logits(text), answer, average)
    if config.experts is not None:
        verdict = replace(verdict, shared_experts=routing.shared_experts(truth.chosen, config.experts.count))
    if isinstance(weights, QuantisedWeights):
        stored = reference.read(config, weights.stored, text).exact
        verdict = replace(verdict, divergence_of_quantising=float(np.mean(_divergences(stored, truth.exact))))
    return verdict


def compare(truth: reference.Readings, ours: Logits, answer: Sequence[int], average: Average = np.mean) -> Verdict:
    """``answer`` are the decoded tokens: the logits from which they were chosen are the last rows of ``truth``."""
    rows = truth.exact[-len(answer) :]
    shortfalls = rows.max(1) - rows[np.arange(len(answer)), list(answer)]
    return Verdict(
        positions=len(ours),
        divergence=float(average(_divergences(truth.exact, ours))),
        divergence_of_bf16=float(average(_divergences(truth.exact, truth.rounded))),
        agreement=_agreement(truth.exact, ours),
        agreement_of_bf16=_agreement(truth.exact, truth.rounded),
        decoded=len(answer),
        shortfall=float(shortfalls.max()),
        allowed_shortfall=2 * float(np.abs(truth.rounded - truth.exact).max()),
    )


def require(verdict: Verdict) -> Verdict:
    """Raise unless the verdict is passed: speeds of a wrong computation are not reported."""
    if not verdict.passed:
        raise TargetError(
            f"The target's logits are wrong, so its speed means nothing: {verdict}.",
            "Report it with this line; --device cpu or interpreter may show where it begins.",
        )
    return verdict


def _divergences(truth: Logits, guess: Logits) -> NDArray[np.float64]:
    """Of every position."""
    true_log, guessed_log = _log_softmax(truth), _log_softmax(guess)
    return np.asarray(np.sum(np.exp(true_log) * (true_log - guessed_log), -1))


def _agreement(truth: Logits, guess: Logits) -> float:
    return float(np.mean(truth.argmax(1) == guess.argmax(1)))


def _log_softmax(rows: Logits) -> NDArray[np.float64]:
    shifted = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
