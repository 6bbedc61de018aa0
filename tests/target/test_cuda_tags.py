"""Tags that run out and start over: in the emulation with so few bits that this happens every pass or two; on a GPU
with a prompt of more than 65,536 steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import on_the_gpu, opened, run
from emulated import EmulatedTarget

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.program.sample import Sampling
from monolane.target.base import Request
from monolane.target.cuda import constants, opening
from monolane.target.cuda.opening import cuda_plan
from random_models import CASES, Case, random_model
from thorough import THOROUGH

DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3, frequency_penalty=0.2)


def fewest_bits(case: Case) -> int:
    """As many as one pass needs: a tag for every stage, and 0 for none."""
    return len(cuda_plan(random_model(case).config, 4).program.stages).bit_length()


def answer(case: Case, workers: int) -> list[object]:
    """A prompt in prefill passes, then sampled tokens, first with one split of the context and then with many."""
    model = random_model(case)
    target = EmulatedTarget(model.config, model.weights, workers)
    tokens, _ = target.run(Request(model.tokens[:29], 0, 24, frozenset(), DRAWN, logprobs=2))
    return [(token.id, token.logprob, token.top) for token in tokens]


def test_tags_of_few_bits_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[1]  # one key/value head: a split for every worker
    monkeypatch.setattr(opening, "SPLIT_PAGES", 1)  # from one split to many, so that some words stay unused for long
    expected = answer(case, 5)
    for more in (0, 1) if THOROUGH else (0,):
        monkeypatch.setattr(constants, "TAG_BITS", fewest_bits(case) + more)
        assert answer(case, 5) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("mark", [pytest.param(None, marks=on_the_gpu)])
def test_a_prompt_whose_steps_pass_65536(mark: None) -> None:
    """However much of it is in the cache, it is the same prompt; its last tokens' pass is the one where tags end."""
    config = replace(SHAPES["llama-3.2-1b"])
    tokens = np.random.default_rng(1).integers(0, config.vocab, 13000).tolist()
    with opened(config, MadeUpWeights(config), 13100) as target:
        for length in (12912, 12928, 12930, 12944, 12946, 12960):
            whole = Request(tokens[:length], 0, 3, frozenset(), Sampling(), logprobs=1)
            fresh, _ = run(target, whole)
            cached, _ = run(target, replace(whole, cached=length // 16 * 16 - 512))
            for one, other in zip(fresh, cached, strict=True):
                assert one.id == other.id
                assert one.logprob == other.logprob
