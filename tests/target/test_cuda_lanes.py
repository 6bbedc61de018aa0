"""Lanes as groups of thread blocks of the emulated CUDA kernel: the logits of one lane, and those of Laneformers."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import EmulatedTarget
from emulated_gpu import WORKERS, open_emulated_gpu

from laneformers import laneformer
from monolane.errors import TargetError, UsageError
from monolane.program.sample import Sampler, Sampling
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda import stream_owners
from monolane.target.cuda.constants import PAGE_TOKENS, TAG_BITS
from monolane.target.cuda.opening import cuda_plan
from random_models import CASES, RandomModel, random_model
from thorough import seldom, thorough

TOLERANCE = 0.2  # of bf16 activations
DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1)
BY_NAME = {case.name: case for case in CASES}
# Each of these kernels has several of the variants at once.
LANEFORMERS = [
    "a head of 64 for each lane",
    "a head of 48 for each lane",
    "two heads of 32 for each lane",
    "early sums",
    "mixed, with windows",
    "mixed, head over all lanes",
    "mixed, sums",
]


def opened(model: RandomModel, lanes: int, workers: int = 3, delay_permille: int = 0, seed: int = 1) -> EmulatedTarget:
    """``workers`` thread blocks for each lane, and one that is left over."""
    processors = lanes * workers + min(1, lanes - 1)
    return EmulatedTarget(
        model.config, model.weights, processors, lanes=lanes, delay_permille=delay_permille, seed=seed
    )


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        seldom("llama-96-biases", 2),  # 9 KV heads, biases of o and down
        ("qwen2-96", 4),  # copies of 2 KV heads, biases
        seldom("llama-64-tied", 2),
        seldom("llama-96-biases", 3),
    ],
)
def test_the_logits_are_those_of_transformers(name: str, lanes: int) -> None:
    model = random_model(BY_NAME[name])
    target = opened(model, lanes)
    for length in (1, 16, 50):
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", [LANEFORMERS[0], *map(seldom, LANEFORMERS[1:])])
def test_a_laneformer_is_the_module(variant: str) -> None:
    """By prefill passes, and then token by token, where lanes run apart as far as delays let them."""
    model = laneformer(variant)
    assert model.config.lanes is not None
    tolerance = TOLERANCE * model.logits.std() / 2
    target = opened(model, model.config.lanes.count, workers=4)  # two of them own the residual stream, if any do
    ours = target.logits(model.tokens[:40])
    np.testing.assert_allclose(ours, model.logits[:40], atol=tolerance, rtol=0)
    target.run(Request(model.tokens[:20], 0, 1, frozenset(), Sampling()))
    for length in range(21, 25):
        request = Request(model.tokens[:length], length - 1, 1, frozenset(), Sampling(), logprobs=20)
        (token,), _ = target.run(request)
        row = model.logits[length - 1]
        exact = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        for other, logprob in token.top:
            assert abs(logprob - exact[other]) <= tolerance


@pytest.mark.parametrize("variant", ["a head of 48 for each lane", seldom("two heads of 32 for each lane")])
def test_owners_attend_at_once_until_their_registers_are_full(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With registers for few pages of the cache: then token by token, the last ones of a context in splits."""
    monkeypatch.setattr(stream_owners, "AT_ONCE_WARPS", 2)
    monkeypatch.setattr(stream_owners, "AT_ONCE_REGISTERS", 32)
    model = laneformer(variant)
    assert model.config.lanes is not None
    lanes, workers = model.config.lanes.count, 3
    plan = cuda_plan(model.config, lanes * workers, lanes)
    pages = stream_owners.at_once_pages(plan)
    assert plan.stream_owners
    assert pages * PAGE_TOKENS + 3 < len(model.tokens)
    target = opened(model, lanes, workers)
    tolerance = TOLERANCE * model.logits.std() / 2
    for border in (1, PAGE_TOKENS, pages * PAGE_TOKENS):
        for length in range(max(2, border - 1), border + 3):
            if length == max(2, border - 1):  # by a prefill pass
                target.run(Request(model.tokens[: length - 1], 0, 1, frozenset(), Sampling()))
            request = Request(model.tokens[:length], length - 1, 1, frozenset(), Sampling(), 20)
            (token,), _ = target.run(request)
            row = model.logits[length - 1]
            exact = row - np.log(np.exp(row - row.max()).sum()) - row.max()
            assert max(abs(logprob - exact[other]) for other, logprob in token.top) <= tolerance


@thorough
def test_workers_and_delays_change_no_bit() -> None:
    model = laneformer("mixed, sums")
    request = Request(model.tokens[:18], 0, 6, frozenset(), DRAWN, 3)
    expected, target = opened(model, 2), opened(model, 2, workers=2, delay_permille=10, seed=2)
    np.testing.assert_array_equal(expected.logits(model.tokens[:8]), target.logits(model.tokens[:8]))
    tokens, again = expected.run(request)[0], target.run(request)[0]
    assert [(token.id, token.top) for token in again] == [(token.id, token.top) for token in tokens]


@thorough
def test_four_lanes_under_delays() -> None:
    model = laneformer("early sums")
    request = Request(model.tokens[:18], 0, 3, frozenset(), Sampling())
    expected = [token.id for token in opened(model, 4).run(request)[0]]
    assert [token.id for token in opened(model, 4, delay_permille=20).run(request)[0]] == expected


def test_lanes_choose_the_token_of_the_reference() -> None:
    model = laneformer("mixed, sums")  # 211 tokens for 2 lanes: the last one has padding
    target = opened(model, 2, workers=9)  # the ranks of 18 workers take more than a line
    tokens, outcome = target.run(Request(model.tokens[:20], 0, 4, frozenset(), DRAWN, 3))
    assert outcome.status == structs.Status.LENGTH_REACHED
    sequence = [*model.tokens[:20], *(token.id for token in tokens)]
    logits, reference = target.logits(sequence), Sampler(DRAWN, 211, np.array(sequence[:20]), 3)
    for made, token in enumerate(tokens):
        choice = reference.choose(logits[19 + made], 20 + made)
        assert token.id == choice.token
        assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)


@thorough
def test_tags_that_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tags of few bits they do so every few passes, and mailboxes are cleared, too."""
    model = laneformer("early sums")
    expected, _ = opened(model, 4).run(Request(model.tokens[:20], 0, 6, frozenset(), Sampling(), 3))
    monkeypatch.setattr("monolane.target.cuda.constants.TAG_BITS", 6)
    assert TAG_BITS > 6
    tokens, _ = opened(model, 4).run(Request(model.tokens[:20], 0, 6, frozenset(), Sampling(), 3))
    assert [(token.id, token.top) for token in tokens] == [(token.id, token.top) for token in expected]


def test_a_lane_that_stalls_is_named() -> None:
    model = laneformer("two lanes")
    stalled = WORKERS + 1  # the second worker of the second lane
    target = open_emulated_gpu(model.config, model.weights, 64, stall=(stalled, 4, 3), lanes=2)
    target.launcher.launch.deadline_ns = 500_000_000
    with pytest.raises(TargetError, match=r"of lane [01] waited too long"):
        list(target.run(Request(model.tokens[:4], 0, 4, frozenset(), Sampling())))


def test_more_lanes_than_a_gpu_has() -> None:
    config = random_model(CASES[0]).config
    with pytest.raises(UsageError, match="does not run 17 lanes"):
        cuda_plan(config, 132, 17)
    with pytest.raises(UsageError, match="does not run 3 lanes"):
        cuda_plan(config, 2, 3)
