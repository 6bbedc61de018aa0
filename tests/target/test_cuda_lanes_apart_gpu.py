"""Lanes apart on a GPU, through MPS: the bits of lanes together, and what happens when a lane fails.

Start MPS first (nvidia-cuda-mps-control -d); without it most of these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from devices import DEVICE, facts, on_the_gpu, run

from laneformers import laneformer
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target
from monolane.target.cuda.opening import find_gpu
from random_models import CASES, random_model

pytestmark = on_the_gpu

DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=3, repetition_penalty=1.1)
WITHIN_S = 1.0


def has_mps() -> bool:
    if DEVICE != "cuda" or (gpu := find_gpu()) is None:
        return False
    from monolane.target.cuda import driver

    return driver.has_mps(gpu)


through_mps = pytest.mark.skipif(not has_mps(), reason="needs MPS: nvidia-cuda-mps-control -d")


def opened(config: ModelConfig, weights: Weights, lanes: int, placement: str) -> Target:
    return open_target(config, weights, device="cuda", lanes=lanes, placement=placement, context=256)


@through_mps
@pytest.mark.parametrize(
    ("name", "lanes"),
    [("two lanes", 2), ("early sums", 4), ("a head of 48 for each lane", 4), ("llama-96-biases", 3)],
)
def test_the_bits_are_those_of_lanes_together(name: str, lanes: int) -> None:
    plain = {case.name: case for case in CASES}
    model = random_model(plain[name]) if name in plain else laneformer(name)
    requests = [
        Request(model.tokens[:20], 0, 200, frozenset(), Sampling()),
        Request(model.tokens[:20], 0, 100, frozenset(), DRAWN, 5),
        Request(model.tokens[:1], 0, 50, frozenset(), Sampling(temperature=2.0, top_p=0.5), 20),
    ]
    found = []
    for placement in ("together", "apart", "apart"):
        target = opened(model.config, model.weights, lanes, placement)
        try:
            answers = [facts(run(target, request)[0]) for request in requests]
            assert answers == [facts(run(target, request)[0]) for request in requests]
            found.append((answers, target.logits(model.tokens[:70])))
        finally:
            target.close()
    (expected, logits), *others = found
    for answers, their_logits in others:
        assert answers == expected
        np.testing.assert_array_equal(their_logits, logits)


@through_mps
def test_aborts_and_copies_reach_all_lanes() -> None:
    model = laneformer("two lanes")
    target = opened(model.config, model.weights, 2, "apart")
    request = Request(model.tokens[:20], 0, 200, frozenset(), Sampling())
    try:
        expected = facts(run(target, request)[0])
        for _ in range(5):
            started = target.run(request)
            batches = iter(started)
            made = next(batches)
            started.abort()
            made += [token for batch in batches for token in batch]
            assert started.finish in (Finish.ABORT, Finish.LENGTH)
            assert facts(made) == expected[: len(made)]
        assert facts(run(target, request)[0]) == expected
        target.copy(0, 1, 19)
        again = Request(model.tokens[:20], 19, 200, frozenset(), Sampling(), cache=1)
        assert facts(run(target, again)[0]) == expected
        stop = expected[5][0]
        assert isinstance(stop, int)
        stopped, finish = run(target, Request(model.tokens[:20], 0, 200, frozenset({stop}), Sampling()))
        assert finish is Finish.STOP
        assert facts(stopped) == expected[: len(stopped)]
    finally:
        target.close()


def fault(what: str) -> dict[str, str]:
    """What a process says in which it happens (lane_faults.py)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = Path(__file__).with_name("lane_faults.py")
    done = subprocess.run(
        [sys.executable, str(program), what], capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    assert "closed" in done.stdout, done.stdout + done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@through_mps
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("stalled", r"of lane 1 waited too long"),
        # A worker that waits for another lane, or one of its own lane that waits for this one.
        ("overwritten", r"of lane [01] waited too long"),
        ("stopped", r"The process of lane 1 does not answer"),
        ("killed before", r"The process of lane 1 was killed by SIGKILL"),
        ("killed", r"The process of lane 1 was killed by SIGKILL"),
    ],
)
def test_a_lane_that_fails_is_named_and_the_next_request_works(what: str, expected: str) -> None:
    said = fault(what)
    assert re.search(expected, said["got"]), said
    if what != "overwritten":  # that takes as long as it takes to hit a word on its way
        assert float(said["after"].removesuffix(" s")) < WITHIN_S
    after = fault("nothing")
    assert after["next"] == after["before"]
    if "before" in said:
        assert after["next"] == said["before"]
        assert said.get("next", said["before"]) == said["before"]


def test_without_mps_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    if DEVICE != "cuda":
        pytest.skip("needs a GPU")
    from monolane.target.cuda.driver import find_devices

    if len(find_devices()) > 1:
        pytest.skip("every lane has a GPU of its own")
    code = (
        "from laneformers import laneformer; from monolane.target import open_target; model = laneformer('two lanes');"
        "open_target(model.config, model.weights, device='cuda', placement='apart', context=64)"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    assert "2 lanes apart on one GPU need MPS" in done.stderr, done.stderr
    assert "nvidia-cuda-mps-control -d" in done.stderr
