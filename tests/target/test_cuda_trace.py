"""The time stamps that the CUDA kernel records, in the emulation."""

from __future__ import annotations

import numpy as np
from emulated import EmulatedTarget, build_emulated

from monolane.bench.trace.stamps import Trace
from monolane.program.build import build_program
from monolane.program.sample import Sampling
from monolane.program.stage import Project
from monolane.target.base import Request
from monolane.target.cuda.opening import cuda_plan
from random_models import CASES, random_model

PASSES, WORKERS = 4, 3


def test_every_worker_stamps_every_stage_in_order() -> None:
    model = random_model(CASES[3])
    stages = build_program(model.config).stages
    stamps = np.zeros((PASSES, WORKERS, len(stages), 3), np.int64)
    library = build_emulated(cuda_plan(model.config, WORKERS), traced=True)
    target = EmulatedTarget(model.config, model.weights, WORKERS, library=library)
    launch = target.launch
    launch.trace, launch.trace_from, launch.trace_passes = stamps.ctypes.data, 1, PASSES
    target.run(Request(model.tokens[:20], 0, PASSES + 4, frozenset(), Sampling()))
    assert (stamps[..., [0, 2]] > 0).all()
    trace = Trace("emulated", stages, stamps, 1.0, 1)
    assert (trace.began <= trace.ready).all()
    assert (trace.ready <= trace.ended).all()
    in_order = stamps.transpose(1, 0, 2, 3).reshape(WORKERS, -1, 3)
    assert (in_order[:, 1:, 0] >= in_order[:, :-1, 2]).all()
    projections = [index for index, stage in enumerate(stages) if isinstance(stage, Project)]
    assert (stamps[:, :, projections, 1] > 0).any((0, 1)).all()
