"""Lanes apart on a GPU, in the emulation: the bits of lanes together, and what happens when a lane fails."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated import EmulatedTarget

from laneformers import laneformer
from monolane.errors import TargetError, UsageError
from monolane.program.sample import Sampling
from monolane.target import structs
from monolane.target.base import Finish, Request
from monolane.target.cuda import opening
from random_models import CASES, RandomModel, random_model
from thorough import seldom, thorough

pytest.importorskip("cuda.bindings", reason="the CUDA target's host side needs the cuda-bindings package")
if sys.platform != "linux":
    pytest.skip("lanes apart share memory by descriptors of Linux", allow_module_level=True)

import lane_faults
from emulated_apart import opened_apart
from emulated_lanes import EmulatedLanes

DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1, logit_bias=((5, 2.0),))
DEADLINE_S = 6.0  # of emulated waits that are to end


def facts(tokens: Any) -> list[tuple[object, ...]]:
    return [(token.id, token.logprob, token.top) for token in tokens]


def requests(model: RandomModel) -> list[Request]:
    return [
        Request(model.tokens[:18], 0, 5, frozenset(), Sampling()),
        Request(model.tokens[:18], 0, 4, frozenset(), DRAWN, 3),
        Request(model.tokens[:1], 0, 3, frozenset(), Sampling(temperature=2.0, top_p=0.5), 20),
    ]


@thorough
@pytest.mark.parametrize(
    ("name", "lanes"),
    [("two lanes", 2), ("a head of 48 for each lane", 4), seldom("mixed, sums", 2), seldom("llama-96-biases", 3)],
)
def test_the_bits_are_those_of_lanes_together(name: str, lanes: int) -> None:
    plain = {case.name: case for case in CASES}
    model = random_model(plain[name]) if name in plain else laneformer(name)
    together = EmulatedTarget(model.config, model.weights, 3 * lanes, lanes=lanes)
    apart = EmulatedLanes(model.config, model.weights, lanes, workers=3, delay_permille=5)
    for request in requests(model):
        tokens, outcomes = apart.run(request)
        assert facts(tokens) == facts(together.run(request)[0])
        assert [outcome.status for outcome in outcomes] == [structs.Status.LENGTH_REACHED] * lanes
    np.testing.assert_array_equal(apart.logits(model.tokens[:20]), together.logits(model.tokens[:20]))


@thorough
def test_tags_that_begin_again_on_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass or two: then all lanes meet, and each clears its memory."""
    model = laneformer("two lanes")
    request = Request(model.tokens[:18], 0, 6, frozenset(), DRAWN, 3)
    expected, _ = EmulatedLanes(model.config, model.weights, 2).run(request)
    monkeypatch.setattr("monolane.target.cuda.constants.TAG_BITS", 6)
    tokens, _ = EmulatedLanes(model.config, model.weights, 2, delay_permille=5).run(request)
    assert facts(tokens) == facts(expected)


@pytest.fixture(autouse=True)
def paths_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of an emulated lane imports what this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_processes_give_the_tokens_of_lanes_together() -> None:
    model = laneformer("two lanes")
    together = EmulatedTarget(model.config, model.weights, 4, lanes=2)
    with opened_apart(model.config, model.weights, 2) as target:
        for request in requests(model):
            assert facts(token for batch in target.run(request) for token in batch) == facts(together.run(request)[0])
        np.testing.assert_array_equal(target.logits(model.tokens[:20]), together.logits(model.tokens[:20]))

        first = facts(token for batch in target.run(requests(model)[0]) for token in batch)
        target.copy(0, 1, 17)
        again = Request(model.tokens[:18], 17, 5, frozenset(), Sampling(), cache=1)
        assert facts(token for batch in target.run(again) for token in batch) == first

        run = target.run(lane_faults.asked(100))
        batches = iter(run)
        next(batches)
        run.abort()
        assert sum(map(len, batches)) < 50
        assert run.finish is Finish.ABORT
        assert facts(token for batch in target.run(requests(model)[0]) for token in batch) == first

        waits = target.lane_waits(lane_faults.asked(6, prompt=2), 1, 3)
        assert waits.shape == (3, 2, 2, len(target.program.stages))
        exchanging = [stage.name in ("o", "down", "combine", "sample") for stage in target.program.stages]
        assert (waits.sum((0, 1, 2))[~np.array(exchanging)] == 0).all()
        assert (waits.sum((0, 2, 3)) > 0).all()  # of every lane
        assert facts(token for batch in target.run(requests(model)[0]) for token in batch) == first


def test_a_process_that_is_killed_ends_the_request_and_is_named() -> None:
    model = laneformer("two lanes")
    with opened_apart(model.config, model.weights, 2, context=256, deadline_s=DEADLINE_S) as target:
        with pytest.raises(TargetError, match=r"The process of lane 1 was killed by SIGKILL"):
            lane_faults.killed(target)
        while target.launcher.running():  # its memory is that of this process
            time.sleep(0.1)


def test_a_process_that_is_killed_or_stopped_before_a_request_is_named() -> None:
    model = laneformer("two lanes")
    with opened_apart(model.config, model.weights, 2) as target:
        with pytest.raises(TargetError, match="The process of lane 1 does not answer"):
            lane_faults.stopped(target)
        with pytest.raises(TargetError, match="The process of lane 1 was killed by SIGKILL"):
            lane_faults.answer(target, lane_faults.asked(4))


def test_a_lane_that_does_not_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("emulated_apart.MAIN", (str(broken),))
    model = laneformer("two lanes")
    with (
        pytest.raises(TargetError, match="The process of lane 1 ended with status 3"),
        opened_apart(model.config, model.weights, 2),
    ):
        pass


@thorough
def test_a_lane_that_stalls_is_named() -> None:
    model = laneformer("two lanes")
    stall = (3, 4, 2 * int(DEADLINE_S))  # the second worker of lane 1
    with (
        opened_apart(model.config, model.weights, 2, stall=stall, deadline_s=DEADLINE_S) as target,
        pytest.raises(TargetError, match="of lane 1 waited too long"),
    ):
        lane_faults.stalled(target)


@thorough
def test_a_mailbox_that_somebody_overwrites_ends_the_request_and_the_next_one_works() -> None:
    model = laneformer("two lanes")
    with opened_apart(model.config, model.weights, 2, context=256, deadline_s=DEADLINE_S) as target:
        expected = lane_faults.answer(target, lane_faults.asked(4))
        with pytest.raises(TargetError, match=r"of lane [01] waited too long"):
            lane_faults.overwritten(target, lambda address, data: ctypes.memset(address, 255, data.nbytes))
        assert lane_faults.answer(target, lane_faults.asked(4)) == expected


def test_processes_end_with_the_target() -> None:
    model = laneformer("two lanes")
    with opened_apart(model.config, model.weights, 2) as target:
        assert target.others
        (pid,) = target.others.pids
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


# --- which GPU each lane gets ---


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, mps: bool = False, apart: tuple[int, int] | None = None) -> None:
    """Of one kind; ``apart``: two that do not reach each other."""
    found = [SimpleNamespace(number=number, capability=(9, 0), processors=132) for number in range(count)]
    monkeypatch.setattr("monolane.target.cuda.driver.find_devices", lambda: found)
    monkeypatch.setattr("monolane.target.cuda.driver.has_mps", lambda _: mps)
    monkeypatch.setattr("monolane.target.cuda.driver.reaches", lambda one, two: (one.number, two.number) != apart)


def test_lanes_have_a_gpu_each_or_share_one_through_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    assert [device.number for device in opening.lane_devices(3)] == [0, 1, 2]
    gpus(monkeypatch, 1, mps=True)
    assert [device.number for device in opening.lane_devices(3)] == [0, 0, 0]
    gpus(monkeypatch, 2)
    with pytest.raises(UsageError, match="3 lanes apart on one GPU need MPS") as refused:
        opening.lane_devices(3)
    assert "nvidia-cuda-mps-control -d" in str(refused.value)
    gpus(monkeypatch, 4, apart=(2, 1))
    with pytest.raises(UsageError, match="GPU 2 cannot use the memory of GPU 1"):
        opening.lane_devices(3)
