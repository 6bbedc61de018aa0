"""Contexts that end on, before and after the edges of attention's tiles, splits and windows, and of prefill passes.

The same sequence is computed in three ways: by decode passes, as the kernel generated it; by prefill passes, as a
prompt; and continued from a cache. The logits of all three must be close to those of transformers in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from devices import DEVICE, on_the_gpu, opened, run
from look_back import LIMIT, TOP, LookBackWeights, error_of, look_back_config
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.program.sample import Sampling
from monolane.target.base import Request, Target, Token
from oracle import judge_weights, log_softmax

pytestmark = on_the_gpu

LONGEST = {"cuda": 4100, "compile": 4100, "cpu": 260, "emulated": 70}[DEVICE]  # tokens
EDGES = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096)
LENGTHS = sorted({*range(1, 41), *(edge + off for edge in EDGES for off in (-1, 0, 1)), 4099})
PASSES = (1, 2, 15, 16, 17, 33)  # tokens that are left to compute after what is cached

NEAR = (0, 1, 15, 16, 31, 32, 63, 64)
FAR = (127, 128, 255, 256, 511, 767, 1023, 2047)


@dataclass(frozen=True)
class Look:
    """A model: its heads, for each layer a window and how far back the heads look, and the lanes that share it."""

    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    distances: tuple[tuple[int, ...], ...]
    sinks: bool = False
    lanes: int = 1


def windowed(window: int) -> Look:
    """The farthest position of a window, the first that is outside, and a layer that sees everything."""
    edges = (0, 1, window // 2, window - 2, window - 1, window - 1, window, window + 1, 2 * window)
    return Look(9, 3, 64, (window, None), (edges, (*NEAR, window)))


LOOKS = {
    "4 per key head": Look(8, 2, 64, (None, None), (NEAR, FAR)),
    "6 per key head of 128": Look(12, 2, 128, (None, None), ((*NEAR, 7, 8, 47, 48), (*FAR, 33, 65, 191, 383))),
    "a head for each of 32": Look(4, 4, 32, (None, None), ((0, 1, 16, 63), (3, 17, 31, 64))),
    "window of 16": windowed(16),
    "window of 64": windowed(64),
    "window of 100": windowed(100),
    "window of 1023": windowed(1023),
    "sinks and a window of 128": replace(windowed(128), sinks=True),
    # The owners of the residual stream attend to up to 448 or 896 tokens at once (stream_owners.py).
    "a lane for each head": Look(6, 6, 64, (None, 100), ((0, 1, 15, 112, 447, 448), (0, 1, 16, 98, 99, 100)), lanes=6),
    "a lane for two of 32": Look(8, 4, 32, (None, None), (NEAR, (*FAR[:5], 895, 896, 897)), lanes=4),
    "a lane for each of 48": Look(4, 4, 48, (None, 33), ((0, 111, 112, 447), (0, 1, 31, 32)), lanes=4),
}


@dataclass(frozen=True)
class Read:
    """A sequence that the kernel generated, and the logprobs of kernel and transformers after each of its tokens."""

    target: Target
    sequence: list[int]
    decoded: list[Token]  # [n]: the token after the first n + 1, with the likeliest tokens
    exact: NDArray[np.float64]  # logprobs after each token, of transformers in fp32


@pytest.fixture(scope="module", params=LOOKS)
def read(request: pytest.FixtureRequest) -> Iterator[Read]:
    look = LOOKS[request.param]
    config = look_back_config(look.heads, look.kv_heads, look.head_dim, look.windows, LONGEST + 1, look.sinks)
    weights = LookBackWeights(config, look.distances)
    with opened(config, weights, LONGEST + 1, lanes=look.lanes) as target:
        yield _read(target, config, weights)


def _read(target: Target, config: ModelConfig, weights: LookBackWeights) -> Read:
    drawn = Request([7], 0, LONGEST, frozenset(), Sampling(temperature=1.0, seed=1), logprobs=TOP)
    decoded, _ = run(target, drawn)
    sequence = [7, *(token.id for token in decoded)][:LONGEST]
    exact = log_softmax(judge_weights(config, weights, sequence).exact)
    return Read(target, sequence, decoded, exact)


def error(read: Read, length: int, token: Token) -> float:
    return error_of(token, read.exact[length - 1])


def after(read: Read, length: int, cached: int) -> Token:
    """The token after so many, of which the first ``cached`` are in the cache."""
    request = Request(read.sequence[:length], cached, 1, frozenset(), Sampling(), logprobs=TOP)
    (token,), _ = run(read.target, request)
    return token


def test_token_by_token(read: Read, record_property: Callable[[str, object], None]) -> None:
    errors = {length: error(read, length, token) for length, token in enumerate(read.decoded, start=1)}
    assert len(errors) == LONGEST
    worst = max(errors, key=errors.__getitem__)
    record_property("largest error", errors[worst])
    assert errors[worst] <= LIMIT, f"after {worst} tokens"


def test_as_a_prompt_and_from_the_cache(read: Read, record_property: Callable[[str, object], None]) -> None:
    errors: dict[tuple[int, int], float] = {}
    for length in (length for length in LENGTHS if length <= LONGEST):
        errors[length, 0] = error(read, length, after(read, length, 0))
        for cached in (length - count for count in PASSES if count < length):
            errors[length, cached] = error(read, length, after(read, length, cached))
    worst = max(errors, key=errors.__getitem__)
    record_property("readings", len(errors))
    record_property("largest error", errors[worst])
    assert errors[worst] <= LIMIT, f"after {worst[0]} tokens, {worst[1]} of them cached"


def test_a_cache_filled_token_by_token_is_continued_in_a_wide_pass(read: Read) -> None:
    """Prefill passes read a cache that decode passes have written, and the other way round."""
    for length in (17, 33, 65, 300):
        if length <= LONGEST:
            after(read, 1, 0)
            for decoded in range(2, length - 15):
                after(read, decoded, decoded - 1)
            prefilled = error(read, length, after(read, length, length - 16))
            assert prefilled <= LIMIT, f"after {length} tokens"
            assert error(read, length + 1, after(read, length + 1, length)) <= LIMIT
