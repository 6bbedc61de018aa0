"""Sampling by all thread blocks of the emulated kernel gives the reference's token, whatever the logits are."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from emulated import EmulatedTarget
from numpy.typing import NDArray

from monolane.bench.measure.shapes import MadeUpWeights
from monolane.model.config import ModelConfig, Rope
from monolane.model.weights import Bf16Bits, to_bf16
from monolane.program.sample import Sampler, Sampling, weights
from monolane.target import structs
from monolane.target.base import Request
from thorough import THOROUGH

TINY = ModelConfig(
    family="llama",
    hidden=32,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=16,
    ffn=64,
    vocab=3001,  # no multiple of a tile: the last block has a part of one
    context=64,
    norm_eps=1e-5,
    rope=Rope(1e4),
    windows=(None,),
    tied=False,
)
BIAS = ((5, 4.0), (90, -100.0), (91, 0.25), (3000, 2.0))
SAMPLINGS = {
    "greedy with penalties": Sampling(repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=0.4),
    "greedy with a bias": Sampling(logit_bias=BIAS),
    "everything allowed": Sampling(temperature=1.0),
    "top-k 1": Sampling(temperature=2.0, top_k=1),
    "top-k of no more than blocks": Sampling(temperature=1.5, top_k=3),
    "top-k": Sampling(temperature=1.0, top_k=700),
    "top-k of nearly all": Sampling(temperature=30.0, top_k=2999),
    "top-p": Sampling(temperature=0.7, top_p=0.9),
    "top-p of one": Sampling(temperature=0.7, top_p=1e-9),
    "top-p of nearly all": Sampling(temperature=1.0, top_p=1 - 2**-31),
    "min-p": Sampling(temperature=1.0, min_p=0.2),
    "top-k and top-p": Sampling(temperature=1.0, top_k=1000, top_p=0.5),
    "hot": Sampling(temperature=100.0, top_k=2000, top_p=0.3, min_p=0.01),
    "cold": Sampling(temperature=0.001, top_p=0.99),
    "all of it": Sampling(0.8, 200, 0.9, 0.01, 0, 1.3, 0.5, -0.5, BIAS),
}


class FewRows(MadeUpWeights):
    """A head of so many different rows, one after the other: whole groups of tokens have the same logit."""

    def __init__(self, config: ModelConfig, rows: int, scale: float) -> None:
        super().__init__(config)
        self._rows, self._scale = rows, scale

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if name != "head":
            return super().rows(name, start, stop)
        return super().rows(name, 0, self._rows)[np.arange(start, stop) % self._rows]

    def vector(self, name: str) -> NDArray[np.float32]:
        return super().vector(name) * np.float32(self._scale if name == "final_norm" else 1)


LOGITS = {"flat": (3001, 1.0), "peaked": (3001, 12.0), "seven different ones": (7, 2.0), "all equal": (1, 1.0)}


@pytest.fixture(scope="module", params=LOGITS)
def target(request: pytest.FixtureRequest) -> EmulatedTarget:
    return EmulatedTarget(TINY, FewRows(TINY, *LOGITS[request.param]), 5, context=64)


def check(target: EmulatedTarget, config: ModelConfig, sampling: Sampling, prompt: list[int], logprobs: int) -> int:
    """One token, which is the reference's choice from the very logits that the kernel has made."""
    request = Request(prompt, 0, 1, frozenset(), sampling, logprobs)
    (token,), outcome = target.run(request)
    assert outcome.status == structs.Status.LENGTH_REACHED
    made = np.ctypeslib.as_array(ctypes.cast(target.launch.logits, ctypes.POINTER(ctypes.c_float)), (config.vocab,))
    choice = Sampler(sampling, config.vocab, np.array(prompt), logprobs).choose(made.copy(), len(prompt))
    assert token.id == choice.token
    assert token.logprob == choice.logprob(choice.distance)
    assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)
    return token.id


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_any_mixture_of_parameters_and_any_distribution(target: EmulatedTarget, sampling: Sampling) -> None:
    for seed in range(4) if THOROUGH else (0, 2):
        check(target, TINY, replace(sampling, seed=seed), [seed * 700, 90, 5][: 1 + seed % 3], (20, 0, 3, 1)[seed])


def test_many_tokens_of_one_block() -> None:
    """Their distances have no room in shared memory; and fewer blocks than logprobs."""
    config = replace(TINY, vocab=40001)
    target = EmulatedTarget(config, FewRows(config, 40001, 2.0), 2, context=64)
    for name in ("greedy with a bias", "top-k", "top-p", "all of it"):
        check(target, config, replace(SAMPLINGS[name], seed=3), [7, 40000], 20)


TAIL = 2900  # tokens


class FourLogits(MadeUpWeights):
    """The first token has a logit s, the second 0.8 s, the tail 0, and the rest less."""

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if name != "head":
            return super().rows(name, start, stop)
        rows = np.zeros((stop - start, TINY.hidden), np.float32)
        token = np.arange(start, stop)
        rows[:, 0] = np.select([token == 0, token == 1, token < 2 + TAIL], [1.0, 0.8, 0.0], -0.25)
        return to_bf16(rows)

    def vector(self, name: str) -> NDArray[np.float32]:
        alone = np.arange(TINY.hidden) == 0
        return np.where(alone, np.float32(8), np.float32(0)) if name == "final_norm" else super().vector(name)


def test_a_tail_that_top_k_keeps_counts_for_top_p() -> None:
    """Thousands of tokens so light that top-p cannot end among them still are part of what it takes its share of."""
    target = EmulatedTarget(TINY, FourLogits(TINY), 5, context=64)
    prompt = next([n] for n in range(50) if target.logits([n])[0, 0] > 1)
    logit = float(target.logits(prompt)[0, 0])
    tail = 2.0**-16.5  # the weight of one of its tokens
    temperature = float(logit / np.log(1 / tail))
    second = 2.0 ** (-16.5 * 0.2)
    # With the tail the second token is needed to reach the share, without it the first one is enough.
    share = 2 / (1 + second + (1 + second + tail * TAIL))
    drawn = {
        check(target, TINY, Sampling(temperature, top_k=2 + TAIL, top_p=share, seed=seed), prompt, 0)
        for seed in range(40)
    }
    assert drawn == {0, 1}


def test_no_weight_is_left_beyond_the_kernels_distances() -> None:
    """The kernel keeps 32 bits of a distance: at the highest temperature that users may ask for, that is far enough."""
    assert weights(np.array([2**32 - 1]), Sampling(temperature=100.0).rate)[0] == 0
