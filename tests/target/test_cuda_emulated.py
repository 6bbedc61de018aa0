"""The CUDA kernel's own sources in the emulation, compared with transformers, the reference sampler, and itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import EmulatedTarget
from look_back import LIMIT, TOP, LookBackWeights, error_of, look_back_config
from stuck import DEADLINE_S, STALL_S, WAITS, Report, expected_reports, stage_index

from monolane.program.plan import Plan
from monolane.program.sample import Sampler, Sampling
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda import generate, opening
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.shared_memory import shared_memory
from oracle import judge_weights, log_softmax
from random_models import CASES, HALVED, Case, random_model
from thorough import seldom, thorough

# Activations are exchanged and multiplied in bf16: of logits with a deviation of about 1, that much may differ.
TOLERANCE = 0.2
# The input of `down` does not fit into shared memory in a prefill pass.
WIDE_FFN = replace(CASES[3], name="llama-wide-ffn", hidden=64, heads=2, kv_heads=1, head_dim=32, ffn=9000)
# As HALVED; in both, columns end in the first block of a unit.
HALVED_WIDE_FFN = replace(WIDE_FFN, name="llama-halved-wide-ffn", hidden=60, layers=2, head_dim=10, ffn=8970)
# Eight splits for each key/value head are as many workers, and every one of them is a thread of the emulation.
FEW_KV_HEADS = replace(CASES[9], name="qwen3-128-two-kv-heads", kv_heads=2)


def open_case(case: Case, workers: int, **options: object) -> EmulatedTarget:
    model = random_model(case)
    return EmulatedTarget(model.config, model.weights, workers, **options)  # type: ignore[arg-type]


def plan_of(case: Case, workers: int) -> Plan:
    return cuda_plan(random_model(case).config, workers)


# What these have, others have, too: tests below run three KV heads of 64, and Qwen3 with heads of 128.
SELDOM = (
    *("llama-64-tied", "mistral-128-window", "mistral-80-long-window", "mistral-64-alternating"),
    *("qwen2-64", "qwen2-96", "qwen3-128", "qwen3-96-seven-kv-heads"),
)


@pytest.mark.parametrize(
    "case",
    [*(seldom(case) if case.name in SELDOM else case for case in CASES), seldom(WIDE_FFN)],
    ids=lambda case: case.name,
)
def test_logits_are_those_of_transformers(case: Case) -> None:
    model, target = random_model(case), open_case(case, 4)
    for length in (1, 16, 70):
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", [HALVED_WIDE_FFN, seldom(HALVED)], ids=lambda case: case.name)
def test_half_tiles_give_the_logits_of_transformers(case: Case) -> None:
    model, target = random_model(case), open_case(case, 3)
    assert plan_of(case, 3).layout.halves_residual
    for length in (1, 40):
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)


def test_inputs_of_norms_that_shared_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of hidden sizes above 4,096: in a prefill pass, each row is prepared by one thread block for all."""
    monkeypatch.setattr(generate, "shared_memory", lambda *given: replace(shared_memory(*given), prefill_cols=0))
    model, target = random_model(CASES[0]), open_case(CASES[0], 3)
    for length in (1, 40):
        ours = target.logits(model.tokens[:length])
        np.testing.assert_allclose(ours, model.logits[:length], atol=TOLERANCE, rtol=0)
    tokens, _ = target.run(Request(model.tokens[:33], 0, 2, frozenset(), Sampling()))
    assert tokens[0].id == model.logits[32].argmax()


@pytest.mark.parametrize(
    ("halved", "workers"), [seldom(False, (4, 9)), (True, (1, 3))], ids=["whole tiles", "half tiles"]
)
def test_workers_and_delays_change_no_bit(halved: bool, workers: tuple[int, ...]) -> None:
    """Unless the workers own half tiles instead of whole ones: those are cut along k in their own way."""
    tokens = random_model(CASES[3]).tokens[:40]
    assert all(plan_of(CASES[3], count).layout.halves_residual == halved for count in workers)
    expected = open_case(CASES[3], workers[0]).logits(tokens)
    for delay in (0, 30):
        np.testing.assert_array_equal(expected, open_case(CASES[3], workers[1], delay_permille=delay).logits(tokens))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(presence_penalty=1.0, frequency_penalty=0.3),
        Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3),
        Sampling(temperature=1.0, top_k=5, seed=9, repetition_penalty=1.3, logit_bias=((5, 4.0), (90, -100.0))),
        Sampling(temperature=50.0, top_p=0.3, min_p=0.01, seed=2**63),
    ],
    ids=["greedy", "penalties", "top-k top-p", "biased", "hot"],
)
@pytest.mark.parametrize("logprobs", [None, 3])
def test_the_kernel_samples_like_the_reference(sampling: Sampling, logprobs: int | None) -> None:
    model, target = random_model(CASES[3]), open_case(CASES[3], 3)
    for prompt in (1, 20):
        request = Request(model.tokens[:prompt], 0, 6, frozenset(), sampling, logprobs)
        tokens, outcome = target.run(request)
        assert outcome.status == structs.Status.LENGTH_REACHED
        sequence = [*model.tokens[:prompt], *(token.id for token in tokens)]
        logits = target.logits(sequence)
        reference = Sampler(sampling, CASES[3].vocab, np.array(sequence[:prompt]), logprobs)
        for made, token in enumerate(tokens):
            choice = reference.choose(logits[prompt + made - 1], prompt + made)
            assert token.id == choice.token
            if logprobs is not None:
                assert token.logprob == choice.logprob(choice.distance)
                assert token.top == tuple((other, choice.logprob(distance)) for other, distance in choice.top)


@pytest.mark.parametrize("pages", [1, 4])
@pytest.mark.parametrize("case", [FEW_KV_HEADS, seldom(CASES[1])], ids=lambda case: case.name)
def test_a_context_in_many_splits(case: Case, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few are merged by the stage that follows, more by a step of their own; some warps of a split have no block.
    With so many workers all warps together hold a short split in registers."""
    monkeypatch.setattr(opening, "SPLIT_PAGES", pages)
    model, target = random_model(case), open_case(case, 8 * case.kv_heads)
    exact = log_softmax(model.logits)
    for length in (17, 40, 100):  # 2, 3 and 7 blocks
        target.run(Request(model.tokens[: length - 1], 0, 1, frozenset(), Sampling()))
        (token,), _ = target.run(Request(model.tokens[:length], length - 1, 1, frozenset(), Sampling(), logprobs=5))
        for other, logprob in token.top:
            assert abs(logprob - exact[length - 1, other]) <= TOLERANCE


@pytest.mark.parametrize("case", [CASES[1], seldom(CASES[8])], ids=lambda case: case.name)
def test_a_long_answer_whose_cache_comes_through_the_ring(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more splits than the stage that follows merges, blocks of the cache are streamed as weights are."""
    monkeypatch.setattr(opening, "SPLIT_PAGES", 1)
    model, target = random_model(case), open_case(case, 5 * case.kv_heads)
    tokens, _ = target.run(Request(model.tokens[:45], 0, 40, frozenset(), Sampling()))  # 3 pages, and in the end 6
    sequence = [*model.tokens[:45], *(token.id for token in tokens)]
    logits = target.logits(sequence)  # by prefill passes
    for made, token in enumerate(tokens):
        row = logits[44 + made]
        assert row[token.id] >= row.max() - TOLERANCE / 10


@pytest.mark.parametrize(
    ("head_dim", "split_blocks", "longest", "workers"),
    [
        pytest.param(96, 16, 256, 4, id="a split of two steps", marks=thorough),
        pytest.param(64, 2, 96, 4, id="a few splits", marks=thorough),
        pytest.param(32, 1, 22 * 4 * 16, 4, id="from the ring, two steps a split", marks=thorough),
        pytest.param(128, 8, 640, 8, id="short splits", marks=thorough),
        pytest.param(168, 6, 320, 8, id="short splits, two value fragments for some warps", marks=thorough),
    ],
)
def test_no_position_is_missed(
    head_dim: int, split_blocks: int, longest: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that look back a fixed distance: somewhere in every block of the context, at one length or another."""
    monkeypatch.setattr(opening, "SPLIT_PAGES", split_blocks)
    distances = tuple(longest * i // 8 for i in range(8))
    config = look_back_config(8, 1, head_dim, (None,), longest + 1)
    weights = LookBackWeights(config, (distances,))
    target = EmulatedTarget(config, weights, workers, context=longest + 1)
    tokens = np.random.default_rng(0).integers(0, config.vocab, longest).tolist()
    exact = log_softmax(judge_weights(config, weights, tokens).exact)
    target.run(Request(tokens, 0, 1, frozenset(), Sampling()))
    for length in range(longest, longest * 7 // 8, -32):
        again = Request(tokens[:length], length - 1, 1, frozenset(), Sampling(), logprobs=TOP)
        (token,), _ = target.run(again)
        assert error_of(token, exact[length - 1]) <= LIMIT, f"after {length} tokens"


def test_a_wide_output_of_attention_is_merged_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads have more than four of its 3,072 elements, and merge them four or eight at a time; of 2 to 5 splits."""
    monkeypatch.setattr(opening, "SPLIT_PAGES", 1)
    config = replace(look_back_config(24, 3, 128, (None,), 81), hidden=192)
    weights = LookBackWeights(config, (tuple(3 * head for head in range(24)),))
    target = EmulatedTarget(config, weights, 18, context=81)
    tokens = np.random.default_rng(0).integers(0, config.vocab, 80).tolist()
    exact = log_softmax(judge_weights(config, weights, tokens).exact)
    target.run(Request(tokens, 0, 1, frozenset(), Sampling()))
    for length in (17, 33, 49, 65, 80):
        again = Request(tokens[:length], length - 1, 1, frozenset(), Sampling(), logprobs=TOP)
        (token,), _ = target.run(again)
        assert error_of(token, exact[length - 1]) <= LIMIT, f"after {length} tokens"


def test_stop_tokens_and_the_cache() -> None:
    model, target = random_model(CASES[3]), open_case(CASES[3], 3)
    request = Request(model.tokens[:5], 0, 12, frozenset(), Sampling(temperature=1.0, seed=4))
    free = [token.id for token in target.run(request)[0]]
    stopped, outcome = target.run(replace(request, stop_tokens=frozenset({free[4]})))
    assert outcome.status == structs.Status.STOPPED
    assert [token.id for token in stopped] == free[: free.index(free[4]) + 1]
    target.run(request)
    longer = [*model.tokens[:5], *free[:6]]
    rest, _ = target.run(replace(request, tokens=longer, cached=len(longer) - 1, max_tokens=6))
    assert [token.id for token in rest] == free[6:]


@pytest.mark.parametrize("prompt", [seldom(20), 1], ids=["prefill", "decode"])
def test_a_stuck_worker_ends_as_an_error_that_names_a_wait(prompt: int) -> None:
    model, plan = random_model(HALVED), plan_of(HALVED, 3)
    stalled, at = 1, stage_index(plan.program, "o")
    target = open_case(HALVED, 3, stall=(stalled, at, STALL_S), deadline_s=DEADLINE_S)
    tokens, outcome = target.run(Request(model.tokens[:prompt], 0, 4, frozenset(), Sampling()))
    assert outcome.status == structs.Status.STUCK
    assert not tokens
    told = Report(plan.program.stages[outcome.stage].name, outcome.layer, WAITS[outcome.waited_for])
    assert {told} == expected_reports(plan, stalled, at, outcome.worker, prefill=prompt > 1)
