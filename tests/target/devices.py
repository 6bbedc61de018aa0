"""The device that the tests of the CUDA kernel run on: the GPU, or another one to try the tests themselves.

``MONOLANE_TEST_DEVICE`` is one of

    cuda       the GPU; the tests are skipped where there is none. This is the default
    emulated   the kernel's own sources and the target's own host side, in the emulation: hours for large models
    cpu        the CPU target: another kernel, but the same interface
    compile    every kernel is compiled for the GPU and kept in the cache; nothing runs, every test is skipped
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from emulated_gpu import open_emulated_gpu
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.sample import Sampling
from monolane.target import open_target
from monolane.target.base import Finish, Request, Target, Token
from monolane.target.cuda import opening
from monolane.target.cuda.opening import find_gpu
from monolane.target.cuda.runtime import SILENT_DEADLINES

Logits = NDArray[np.float32]
Stall = tuple[int, int, int]  # worker, stage, seconds

DEVICE = os.environ.get("MONOLANE_TEST_DEVICE", "cuda")
assert DEVICE in ("cuda", "emulated", "cpu", "compile"), DEVICE

NAN_WITH_TAG = 0x7FC10003  # as two bf16: a tag, a NaN; as fp32: a NaN
H200_PROCESSORS, H200_SHARED_LIMIT = 132, 232448  # what kernels are compiled for where there is no GPU

# For a test, or as the ``pytestmark`` of a file.
on_the_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and find_gpu() is None, reason="needs an NVIDIA GPU that the kernel runs on"),
]


def dry(config: ModelConfig) -> ModelConfig:
    """A config for a GPU; cut down to a tiny one where the tests themselves are tried."""
    if DEVICE in ("cuda", "compile"):
        return config
    layers = min(config.layers, 2)
    return replace(
        config,
        hidden=config.hidden // 16,
        ffn=config.ffn // 32,
        vocab=min(config.vocab, 501),
        layers=layers,
        windows=config.windows[:layers],
    )


@contextmanager
def opened(
    config: ModelConfig,
    weights: Weights,
    context: int,
    *,
    device: str = DEVICE,
    stall: Stall | None = None,
    deadline_s: float | None = None,
    lanes: int = 1,
) -> Iterator[Target]:
    """A target, closed at the end. ``stall``: a worker sleeps at a stage of every pass; ``deadline_s``: of waits."""
    if device == "compile":
        _compile(config, weights, stall, lanes)
        pytest.skip("compiled for the GPU; nothing was run")
    if stall and device == "cpu":
        pytest.skip("the CPU target has no injected stalls")
    if device == "emulated":
        target: Target = open_emulated_gpu(config, weights, context, stall, lanes)
    else:
        with (
            mock.patch.object(opening, "generate", partial(opening.generate, stall=stall)),
            mock.patch("monolane.target.cuda.runtime.CudaTarget.settle") if stall else nullcontext(),
            poisoned(device),
        ):
            target = open_target(config, weights, device=device, context=context, lanes=lanes)
    if deadline_s is not None and device != "cpu":
        set_deadline(target, deadline_s)
    try:
        yield target
    finally:
        target.close()


def poisoned(device: str) -> AbstractContextManager[object]:
    """Memory of a GPU is allocated with NaN in every word, each with a tag that a step will have."""
    if device != "cuda":
        return nullcontext()
    from monolane.target.cuda import driver

    allocate = driver.Context.allocate

    def with_poison(self: driver.Context, size: int) -> int:
        address = allocate(self, size)
        words = max(size, 16) // 4
        driver.call(driver.driver.cuMemsetD32Async(address, NAN_WITH_TAG, words, self._stream))
        driver.call(driver.driver.cuStreamSynchronize(self._stream))
        return address

    return mock.patch.object(driver.Context, "allocate", with_poison)


def set_deadline(target: Target, seconds: float) -> None:
    """How long a wait on the device may take, from the next launch on; the host is never less patient than before."""
    target.launcher.launch.deadline_ns = int(seconds * 1e9)  # type: ignore[attr-defined]
    target.silent_s = max(target.silent_s, SILENT_DEADLINES * seconds)  # type: ignore[attr-defined]


def run(target: Target, request: Request) -> tuple[list[Token], Finish | None]:
    """All tokens of a request, and how it ended."""
    tokens: list[Token] = []
    started = target.run(request)
    for batch in started:
        tokens += batch
    return tokens, started.finish


def facts(tokens: list[Token]) -> list[tuple[object, ...]]:
    """All of a token but its time."""
    return [(token.id, token.logprob, token.top) for token in tokens]


def decode_logits(target: Target, tokens: list[int], vocab: int) -> Logits:
    """The logits after each token, where each comes in a pass of its own."""
    rows = []
    for length in range(1, len(tokens) + 1):
        run(target, Request(tokens[:length], length - 1, 1, frozenset(), Sampling(), logprobs=0))
        if DEVICE != "cpu":
            rows.append(_last_logits(target, vocab))
    return np.array(rows) if rows else target.logits(tokens)


def chosen_from(target: Target, request: Request, tokens: list[int], vocab: int) -> Logits:
    """The logits that each of the tokens of a request was chosen from: the kernel's own, bit for bit.

    The request asks for logprobs: only then does the kernel need all logits of a token in one place.
    """
    rows = []
    for made in range(1, len(tokens) + 1):
        again, _ = run(target, replace(request, max_tokens=made))
        assert [token.id for token in again] == tokens[:made]
        if DEVICE != "cpu":
            rows.append(_last_logits(target, vocab))
    return np.array(rows) if rows else target.logits([*request.tokens, *tokens])[len(request.tokens) - 1 : -1]


def _last_logits(target: Target, vocab: int) -> Logits:
    """What the last token of the last run was chosen from, where it asked for logprobs. The CPU target does not keep
    that; but its passes give the same bits at any width."""
    logits = np.empty(vocab, np.float32)
    launcher = target.launcher  # type: ignore[attr-defined]
    launcher.context.download(launcher.launch.logits, logits)
    return logits


def _compile(config: ModelConfig, weights: Weights, stall: Stall | None, lanes: int) -> None:
    from monolane.target.cuda.jit import compile_kernel

    plan = opening.cuda_plan(config, H200_PROCESSORS, lanes, weights.format)
    compile_kernel(opening.generate(plan, H200_SHARED_LIMIT, stall=stall), "sm_90a")
