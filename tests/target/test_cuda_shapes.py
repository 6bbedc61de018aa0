"""The kernel on a GPU at the shapes of real models, with made-up weights: close to fp32, bit-identical in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from devices import decode_logits, dry, facts, on_the_gpu, opened, run

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.model.config import ModelConfig
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request, Target
from oracle import judge_weights, near_enough

pytestmark = on_the_gpu

PROMPT = 40  # tokens: two prefill passes of 16 rows and one of 8
REPEATS = 20
LONG = 2000  # tokens


def cut(name: str, layers: int, vocab: int | None = None) -> ModelConfig:
    """A real shape with fewer layers, and a smaller vocabulary."""
    config = SHAPES[name]
    return dry(replace(config, layers=layers, windows=(None,) * layers, vocab=vocab or config.vocab))


# One with its whole vocabulary, one that is whole; the others as large as is quick: up to hidden sizes of 8,192.
TESTED = {
    "llama-3.2-1b": cut("llama-3.2-1b", 2),
    "llama-3.1-8b": cut("llama-3.1-8b", 2, 5003),
    "qwen2.5-coder-1.5b": cut("qwen2.5-coder-1.5b", 3, 5003),
    "qwen3-1.7b": cut("qwen3-1.7b", 3, 5003),
    "smollm2-135m": cut("smollm2-135m", 30),
}
# Laneformers, which transformers does not know, are in test_cuda_lanes_gpu.py, and experts in test_cuda_experts_gpu.py.
OTHERS = (name for name, shape in SHAPES.items() if name not in TESTED and not shape.lanes and not shape.experts)
TESTED |= {name: cut(name, 2, 5003) for name in OTHERS}


def some_tokens(config: ModelConfig, count: int) -> list[int]:
    return np.random.default_rng(count).integers(0, config.vocab, count).tolist()


@dataclass(frozen=True)
class Shape:
    config: ModelConfig
    weights: MadeUpWeights
    target: Target


@pytest.fixture(scope="module", params=TESTED)
def shape(request: pytest.FixtureRequest) -> Iterator[Shape]:
    config = TESTED[request.param]
    weights = MadeUpWeights(config)
    with opened(config, weights, 256) as target:
        yield Shape(config, weights, target)


def test_logits(shape: Shape, record_property: Callable[[str, object], None]) -> None:
    tokens = some_tokens(shape.config, PROMPT)
    verdict = judge_weights(shape.config, shape.weights, tokens)
    record_property("prefill", near_enough(verdict, shape.target.logits(tokens)))
    record_property("decode", near_enough(verdict, decode_logits(shape.target, tokens, shape.config.vocab)))


def test_the_same_bits_every_time(shape: Shape) -> None:
    """Most shapes have several batches of tiles per thread block, and inputs of prefill passes that do not fit shared
    memory. Those are loaded from global memory; loads of weights from the ring may wait behind them, and meanwhile the
    slot of the ring must not be overwritten."""
    tokens = some_tokens(shape.config, 100)
    expected = shape.target.logits(tokens)
    assert np.isfinite(expected).all()
    for _ in range(REPEATS - 1):
        np.testing.assert_array_equal(shape.target.logits(tokens), expected)


@pytest.fixture(scope="module")
def whole_1b() -> Iterator[Shape]:
    config = dry(SHAPES["llama-3.2-1b"])
    weights = MadeUpWeights(config)
    with opened(config, weights, LONG + 128) as target:
        yield Shape(config, weights, target)


@pytest.mark.parametrize(
    ("sampling", "logprobs"),
    [(Sampling(), None), (Sampling(), 1), (Sampling(temperature=1.0, top_p=0.95, seed=11), 1)],
    ids=["greedy", "greedy with logprobs", "drawn with logprobs"],
)
def test_long_runs_of_the_whole_1b_shape_are_identical(
    whole_1b: Shape, sampling: Sampling, logprobs: int | None
) -> None:
    request = Request(some_tokens(whole_1b.config, 100), 0, LONG, frozenset(), sampling, logprobs)
    first, finish = run(whole_1b.target, request)
    assert finish is Finish.LENGTH
    assert len(first) == LONG
    assert facts(run(whole_1b.target, request)[0]) == facts(first)
