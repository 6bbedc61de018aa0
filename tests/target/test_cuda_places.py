"""Where the memory of hand-offs lies: a model tries a few places when it is opened, and keeps the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from unittest import mock

import pytest
from emulated_gpu import open_emulated_gpu

from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.target.base import Request
from monolane.target.cuda.launcher import PLACE_BYTES, PLACES
from monolane.target.cuda.runtime import FEWEST_TOKENS, CudaTarget
from random_models import CASES, random_model

MODEL = random_model(CASES[3])


@pytest.fixture
def target() -> Iterator[CudaTarget]:
    with closing(open_emulated_gpu(MODEL.config, MODEL.weights, 64)) as target:
        yield target


def tokens(target: CudaTarget) -> list[int]:
    run = target.run(Request(MODEL.tokens[:5], 0, 6, frozenset(), Sampling()))
    return [token.id for batch in run for token in batch]


def place(target: CudaTarget, first: int) -> int:
    place, rest = divmod((target.launcher.launch.activation_words or 0) - first, PLACE_BYTES)
    assert not rest
    return place


def test_the_fastest_place_is_kept(target: CudaTarget) -> None:
    first = target.launcher.launch.activation_words or 0
    tried: list[tuple[int, int]] = []

    def token_ns(number: int, count: int) -> float:
        tried.append((number, count))
        return 440e3 - 10e3 * (number == 5)

    with mock.patch.object(target, "_token_ns", token_ns):
        target.settle()
    assert {number for number, _ in tried} == set(range(PLACES))
    assert max(count for _, count in tried) > FEWEST_TOKENS  # there is time for more, and so for less noise
    assert place(target, first) == 5


def test_a_large_model_does_not_wait_for_it(target: CudaTarget) -> None:
    first, times = target.launcher.launch.activation_words or 0, mock.Mock(return_value=50e6)
    with mock.patch.object(target, "_token_ns", times):
        target.settle()
    assert times.call_count == 1
    assert place(target, first) == 0


def test_a_model_that_fails_is_opened_and_says_so_when_it_is_asked(target: CudaTarget) -> None:
    first = target.launcher.launch.activation_words or 0
    with mock.patch.object(target, "_token_ns", side_effect=[1e6, 1e6, TargetError("not numbers", "")]):
        target.settle()
    assert place(target, first) == 0


def test_the_answer_is_the_same_at_every_place(target: CudaTarget) -> None:
    expected = tokens(target)
    for number in (PLACES - 1, 1, 0):
        target.launcher.place_handoffs(number)
        assert tokens(target) == expected


def test_a_place_is_timed_by_tokens_made_there(target: CudaTarget) -> None:
    expected, first = tokens(target), target.launcher.launch.activation_words or 0
    assert target._token_ns(3, 6) > 0
    assert place(target, first) == 3
    assert tokens(target) == expected
