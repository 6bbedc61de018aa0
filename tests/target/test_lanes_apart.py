"""Lanes in processes of their own: the tokens of lanes together, and what happens when a process fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laneformers import laneformer
from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.target import lane_processes, open_target
from monolane.target.base import Request
from monolane.target.cpu.runtime import CpuTarget
from monolane.target.lane_processes import LaneProcesses
from random_models import CASES, RandomModel, random_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lanes apart share memory by descriptors of Linux")

MODEL = CASES[0]
DRAWN = Sampling(temperature=0.9, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1, logit_bias=((5, 2.0),))


@contextmanager
def opened(model: RandomModel, lanes: int | None, placement: str, workers: int = 2) -> Iterator[CpuTarget]:
    """With a cache in fp32: so the kernels are those of test_lanes.py."""
    target = open_target(
        *(model.config, model.weights),
        device="cpu",
        workers=workers,
        lanes=lanes,
        placement=placement,
        context=256,
        cache_format="f32",
    )
    assert isinstance(target, CpuTarget)
    try:
        yield target
    finally:
        target.close()


@contextmanager
def apart(lanes: int = 2) -> Iterator[tuple[CpuTarget, list[int]]]:
    """A target, and the processes of its lanes from the second on."""
    with opened(random_model(MODEL), lanes, "apart") as target:
        assert isinstance(target.others, LaneProcesses)
        yield target, target.others.pids


def answer(target: CpuTarget, request: Request) -> list[tuple[object, ...]]:
    return [(token.id, token.logprob, token.top) for batch in target.run(request) for token in batch]


def long() -> Request:
    return Request(random_model(MODEL).tokens[:20], 0, 200, frozenset(), Sampling())


@pytest.mark.parametrize(("lanes", "workers"), [(2, 2), (4, 2), (2, 4)])
def test_the_tokens_are_those_of_lanes_together(lanes: int, workers: int) -> None:
    model = random_model(MODEL)
    requests = [
        Request(model.tokens[:21], 0, 8, frozenset(), Sampling()),
        Request(model.tokens[:50], 21, 8, frozenset(), DRAWN, logprobs=3),
        Request(model.tokens[:1], 0, 8, frozenset(), Sampling()),
    ]
    with opened(model, lanes, "together", workers) as target:
        expected = [answer(target, request) for request in requests]
        logits = target.logits(model.tokens[:40])
    with opened(model, lanes, "apart", workers) as target:
        assert [answer(target, request) for request in requests] == expected
        assert (target.logits(model.tokens[:40]) == logits).all()


def test_a_laneformer_apart() -> None:
    model = laneformer("mixed, sums")
    request = Request(model.tokens[:21], 0, 12, frozenset(), DRAWN, logprobs=2)
    with opened(model, None, "together") as target:
        expected = answer(target, request)
    with opened(model, None, "apart") as target:
        assert answer(target, request) == expected


def test_caches_are_copied_on_every_lane() -> None:
    with apart() as (target, _):
        assert target.caches > 1
        first = answer(target, long())
        target.copy(0, 1, 19)
        answer(target, Request(random_model(MODEL).tokens[30:60], 0, 4, frozenset(), Sampling()))
        again = Request(long().tokens, 19, 200, frozenset(), Sampling(), cache=1)
        assert answer(target, again) == first


def test_an_abort_leaves_all_lanes_at_the_same_place() -> None:
    with apart() as (target, _):
        expected = answer(target, long())
        for _ in range(3):
            run = target.run(long())
            batches = iter(run)
            made = next(batches)
            run.abort()
            made += [token for batch in batches for token in batch]
            assert [(token.id, token.logprob, token.top) for token in made] == expected[: len(made)]
        assert answer(target, long()) == expected


def test_a_process_that_is_killed_ends_the_request_and_is_named() -> None:
    with apart(lanes=4) as (target, pids):
        batches = iter(target.run(long()))
        next(batches)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TargetError, match="The process of lane 2 was killed by SIGKILL"):
            list(batches)


def test_a_process_that_is_killed_before_a_request_is_named() -> None:
    with apart() as (target, pids):
        answer(target, long())
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(TargetError, match="The process of lane 1 was killed by SIGKILL"):
            answer(target, long())


def test_a_process_that_is_stopped_ends_the_request_and_is_named() -> None:
    with apart() as (target, pids):
        batches = iter(target.run(long()))
        next(batches)
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(TargetError, match="Worker 0 of lane 1 got stuck: worker 0 of lane 0 waited"):
            list(batches)
        os.kill(pids[0], signal.SIGKILL)


def test_a_process_that_was_stopped_before_a_request_is_named() -> None:
    with apart() as (target, pids):
        answer(target, long())
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(TargetError, match="The process of lane 1 does not answer"):
            answer(target, long())
        os.kill(pids[0], signal.SIGKILL)


def test_a_lane_that_does_not_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(lane_processes, "MAIN", (str(broken),))
    with pytest.raises(TargetError, match="The process of lane 1 ended with status 3"), apart():
        pass


def test_counters_that_somebody_has_overwritten_end_the_request() -> None:
    with apart() as (target, _):
        batches = iter(target.run(long()))
        next(batches)
        target._shared.array[128:256] = 255  # type: ignore[attr-defined]  # those of the first worker of lane 1
        with pytest.raises(TargetError, match="of lane 1 got stuck"):
            list(batches)


def test_no_process_outlives_the_target() -> None:
    with apart(lanes=4) as (_, pids):
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    end_s = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s
        time.sleep(0.01)
