"""Lanes in one process: plain models give the answers of one lane, Laneformers those of the PyTorch module."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from laneformers import VARIANTS, laneformer
from monolane.errors import TargetError, UsageError
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target
from monolane.target.cpu import machine
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.generate import generate
from monolane.target.cpu.native import Library, Place
from monolane.target.cpu.runtime import CpuTarget
from random_models import CASES, MIXTURES, RandomModel, random_model
from thorough import seldom

TOLERANCE = 5e-5  # of fp32 sums in another order, where logits have a deviation of about 1
DRAWN = Sampling(temperature=0.9, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1)
BY_NAME = {case.name: case for case in (*CASES, *MIXTURES)}


def opened(model: RandomModel, device: str = "cpu", workers: int = 2, lanes: int | None = None) -> Target:
    return open_target(
        model.config, model.weights, device=device, workers=workers, lanes=lanes, context=256, cache_format="f32"
    )


def tokens_of(target: Target, request: Request) -> list[tuple[object, ...]]:
    """All of the tokens of an answer but their times."""
    return [(token.id, token.logprob, token.top) for batch in target.run(request) for token in batch]


# A kernel takes seconds to compile: the CPU has the first two in every run, and two more in a thorough one.
DIVIDED = [
    ("llama-64-tied", 2),  # 3 KV heads
    ("qwen3-96-seven-kv-heads", 8),  # more lanes than KV heads
    ("llama-80-one-kv-head", 4),  # copies of one KV head, for 5 query heads
    ("qwen2-96", 4),  # 2 KV heads with 3 query heads each
    ("llama-96-biases", 3),
    ("mistral-64-alternating", 2),
    ("gpt-oss", 2),  # experts with biases, sinks
    ("qwen2-moe-shared", 3),  # layers with and without experts, a shared expert
    ("qwen3-moe", 2),
    ("mixtral", 4),
]


@pytest.mark.parametrize(
    ("device", "name", "lanes"),
    [
        *(("interpreter", *case) for case in DIVIDED),
        *(("cpu", *case) for case in (*DIVIDED[:2], *DIVIDED[6:7])),
        *(seldom("cpu", *case) for case in (*DIVIDED[2:4], *DIVIDED[7:])),
    ],
)
def test_the_logits_are_those_of_transformers(device: str, name: str, lanes: int) -> None:
    model = random_model(BY_NAME[name])
    with closing(opened(model, device, lanes=lanes)) as target:
        ours = target.logits(model.tokens[:70])
    np.testing.assert_allclose(ours, model.logits[:70], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_laneformer_is_the_module_in_the_interpreter(variant: str) -> None:
    model = laneformer(variant)
    with closing(opened(model, "interpreter")) as target:
        ours = target.logits(model.tokens[:70])
    np.testing.assert_allclose(ours, model.logits[:70], atol=TOLERANCE * model.logits.std(), rtol=0)


def test_early_layers_that_send_nothing() -> None:
    sending, silent = laneformer("plain"), laneformer("plain", early_sends=False)
    assert np.abs(sending.logits - silent.logits).max() > 0.1
    with closing(opened(silent, "interpreter")) as target:
        ours = target.logits(silent.tokens[:40])
    np.testing.assert_allclose(ours, silent.logits[:40], atol=TOLERANCE * silent.logits.std(), rtol=0)


# Each of these kernels has several of the variants at once.
@pytest.mark.parametrize("variant", ["mixed, with windows", "mixed, head over all lanes", seldom("mixed, sums")])
def test_a_laneformer_is_the_module_on_the_cpu(variant: str) -> None:
    model = laneformer(variant)
    results = []
    for workers in (1, 2, 8):  # threads that run several lanes, and lanes with several threads
        with closing(opened(model, workers=workers)) as target:
            results.append(target.logits(model.tokens[:40]))
    np.testing.assert_allclose(results[0], model.logits[:40], atol=TOLERANCE * model.logits.std(), rtol=0)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_an_answer_is_that_of_the_interpreter_and_of_every_number_of_threads(sampling: Sampling) -> None:
    model = laneformer("mixed, sums")
    request = Request(model.tokens[:21], 0, 12, frozenset(), sampling, logprobs=2)
    with closing(opened(model, "interpreter")) as target:
        expected = [token for token, _, _ in tokens_of(target, request)]
    answers = []
    for workers in (1, 2, 8):
        with closing(opened(model, workers=workers)) as target:
            answers += [tokens_of(target, request), tokens_of(target, request)]
    assert [token for token, _, _ in answers[0]] == expected
    assert all(answer == answers[0] for answer in answers)


def test_stop_tokens_the_cache_and_an_abort() -> None:
    model = random_model(BY_NAME["llama-64-tied"])
    with closing(opened(model, lanes=2)) as target:
        long = Request(model.tokens[:21], 0, 40, frozenset(), Sampling(temperature=1.0, seed=4))
        answer = tokens_of(target, long)
        ids = [token for token, _, _ in answer]
        stop = Request(model.tokens[:21], 0, 40, frozenset({ids[5]}), long.sampling)
        assert [token for token, _, _ in tokens_of(target, stop)] == ids[: ids.index(ids[5]) + 1]
        sequence = [*model.tokens[:21], *ids[:6]]
        assert tokens_of(target, long) == answer
        cached = Request(sequence, len(sequence) - 1, 10, frozenset(), long.sampling)
        assert [token for token, _, _ in tokens_of(target, cached)] == ids[6:16]
        run = target.run(long)
        batches = iter(run)
        made = next(batches)
        run.abort()
        made += [token for batch in batches for token in batch]
        assert run.finish in (Finish.ABORT, Finish.LENGTH)
        assert [token.id for token in made] == ids[: len(made)]
        assert tokens_of(target, long) == answer  # all lanes have left the aborted request at the same place


@pytest.mark.parametrize("stage", ["down", seldom("qkv")])
def test_a_stuck_worker_is_named_with_its_lane(stage: str) -> None:
    model = random_model(BY_NAME["llama-64-tied"])
    target = opened(model, workers=4, lanes=2)
    assert isinstance(target, CpuTarget)
    tapes = target._tapes
    at = next(index for index, found in enumerate(target.program.stages) if found.name == stage)
    compiler = find_compiler()
    assert compiler is not None
    source = generate(target.program, stall=(3, at, 3600))
    library = Library(build(source, compiler, machine.vector_level()))
    stuck = CpuTarget(library, tapes, 256, Place(4), "stalled", deadline_s=0.2)
    with pytest.raises(TargetError, match=r"Worker 1 of lane 1 got stuck: worker \d of lane \d waited"):
        list(stuck.run(Request(model.tokens[:5], 0, 3, frozenset(), Sampling())))
    stuck.close()
    target.close()


def test_a_trace_has_the_workers_of_all_lanes() -> None:
    model = random_model(BY_NAME["llama-64-tied"])
    with closing(opened(model, lanes=2)) as target:
        assert isinstance(target, CpuTarget)
        stamps = target.trace(Request(model.tokens[:21], 0, 6, frozenset(), Sampling()), 1, 3)
    assert stamps.shape == (3, 2, len(target.program.stages), 3)
    assert (np.diff(stamps, axis=3) >= 0).all()


def test_numbers_of_lanes_that_cannot_be() -> None:
    model, other = random_model(BY_NAME["llama-20"]), laneformer("plain")
    for lanes in (0, -1, 65):
        with pytest.raises(UsageError, match="lanes are not possible"):
            opened(model, lanes=lanes)
    with pytest.raises(UsageError, match="This model has 4 lanes, not 2"):
        opened(other, lanes=2)
