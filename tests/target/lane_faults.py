"""What may happen to lanes apart on a GPU, and what a request gets then.

Run as a program it does one of these things on the GPU and prints what the request got and how long it took: a process
of its own, because the death of a process that shares a GPU may harm all others that do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from laneformers import laneformer
from monolane.errors import TargetError
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Request
from monolane.target.cuda import opening
from monolane.target.cuda.runtime import CudaTarget

MODEL = "two lanes"
CONTEXT = 256


def asked(tokens: int = 200, prompt: int = 18) -> Request:
    return Request(laneformer(MODEL).tokens[:prompt], 0, tokens, frozenset(), Sampling())


def answer(target: CudaTarget, request: Request) -> list[int]:
    return [token.id for batch in target.run(request) for token in batch]


def killed(target: CudaTarget) -> None:
    """The process of lane 1 is killed during a request."""
    assert target.others
    batches = iter(target.run(asked()))
    next(batches)
    os.kill(target.others.pids[0], signal.SIGKILL)
    list(batches)


def killed_before(target: CudaTarget) -> None:
    assert target.others
    answer(target, asked(4))
    os.kill(target.others.pids[0], signal.SIGKILL)
    answer(target, asked(4))


def stopped(target: CudaTarget) -> None:
    """What has been launched runs on, but the next request is not begun."""
    assert target.others
    answer(target, asked(4))
    os.kill(target.others.pids[0], signal.SIGSTOP)
    try:
        answer(target, asked(4))
    finally:
        os.kill(target.others.pids[0], signal.SIGKILL)


def stalled(target: CudaTarget) -> None:
    """For kernels in which a worker of lane 1 sleeps."""
    answer(target, asked(4))


def overwritten(
    target: CudaTarget, write: Callable[[int, np.ndarray], None], times: int = 1, within_s: float = 60.0
) -> None:
    """Somebody overwrites the mailbox of lane 0 all the time: so many times for each batch of tokens. A word is read a
    few microseconds after it was sent, so on a GPU it takes many times to hit one, more where others use it, too."""
    rubbish = np.full(target.launcher.model.sizes["mailbox"], 255, np.uint8)
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for _ in target.run(asked()):
            for _ in range(times):
                write(target.launcher.launch.mailbox, rubbish)


def _write(address: int, data: np.ndarray) -> None:
    """While a kernel runs: by a copy that its stream does not wait for."""
    from monolane.target.cuda import driver

    driver.call(driver.driver.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))


def main() -> None:
    what = sys.argv[1]
    model = laneformer(MODEL)
    acts: dict[str, Callable[[CudaTarget], None]] = {
        "killed": killed, "killed before": killed_before, "stopped": stopped, "stalled": stalled,
        "overwritten": lambda target: overwritten(target, _write, 200), "nothing": lambda target: None,
    }  # fmt: skip
    stall = (67, 4, 2) if what == "stalled" else None  # the second worker of lane 1, of 66 each
    generate = opening.generate
    with mock.patch.object(opening, "generate", lambda plan, limit, **how: generate(plan, limit, **how, stall=stall)):
        target = open_target(model.config, model.weights, device="cuda", placement="apart", context=CONTEXT)
    assert isinstance(target, CudaTarget)
    if what != "stalled":
        print("before:", *answer(target, asked(20)), flush=True)
    began = time.monotonic()
    try:
        acts[what](target)
        print("got: nothing", flush=True)
    except TargetError as error:
        print("got:", error.message, flush=True)
    print(f"after: {time.monotonic() - began:.2f} s", flush=True)
    if what in ("overwritten", "nothing"):
        print("next:", *answer(target, asked(20)), flush=True)
        target.close()
    print("closed", flush=True)
    os._exit(0)  # as the engine's process ends where a target has failed


if __name__ == "__main__":
    main()
