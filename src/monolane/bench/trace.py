"""Where the time of a token goes on a GPU: stamps of every worker at every stage, over a few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from monolane.bench.shapes import SHAPES, MadeUpWeights
from monolane.errors import UsageError
from monolane.model.progress import Silent
from monolane.program.sample import Sampling
from monolane.program.stage import Program
from monolane.target.base import Request, Token
from monolane.target.cuda.opening import open_cuda, required_gpu

if TYPE_CHECKING:
    from monolane.target.cuda.runtime import CudaTarget

CONTEXT = 2048
PROMPT_TOKENS, TOKENS = 128, 256
TRACED_FROM, TRACED_PASSES = 100, 8  # narrow passes: the caches are warm, the context is some 230 tokens


def report(shape: str) -> str:
    """Decode speed and, per kind of stage, the time it adds to the critical path, its wait and its work, in µs."""
    if shape not in SHAPES:
        raise UsageError(f"There is no shape {shape!r}.", f"Choose one of: {', '.join(SHAPES)}.")
    config = SHAPES[shape]
    target = open_cuda(config, MadeUpWeights(config), CONTEXT, required_gpu(), Silent())
    prompt = np.random.default_rng(0).integers(0, config.vocab, PROMPT_TOKENS).tolist()
    _run(target, prompt)  # warms up
    tokens = _run(target, prompt)
    us = (tokens[-1].time_ns - tokens[0].time_ns) / 1e3 / (len(tokens) - 1)
    stamps = target.trace(
        Request(prompt, 0, TRACED_FROM + TRACED_PASSES + 2, frozenset(), Sampling()), TRACED_FROM, TRACED_PASSES
    )
    speed = f"{shape}: {us:.1f} µs/token, {target.bytes_per_token / us / 1e6:.3f} TB/s of weights"
    lines = [speed, *_table(target.program, stamps)]
    target.close()
    return "\n".join(lines)


def _run(target: CudaTarget, prompt: list[int]) -> list[Token]:
    run = target.run(Request(prompt, 0, TOKENS, frozenset(), Sampling()))
    return [token for batch in run for token in batch]


def _table(program: Program, stamps: NDArray[np.int64]) -> list[str]:
    """``stamps``: [passes][workers][stages][began, had its input, ended] in ns."""
    passes, _, stages, _ = stamps.shape
    ends = stamps[..., 2].max(1).ravel()  # of the slowest worker
    critical = np.diff(ends, prepend=ends[0]).reshape(passes, stages)[1:] / 1e3
    later = stamps[1:] / 1e3
    ready = np.where(later[..., 1] > 0, later[..., 1], later[..., 0])
    wait, work = ready - later[..., 0], later[..., 2] - ready
    names = np.array([stage.name for stage in program.stages])
    lines = [
        f"{'stage':10}{'times':>6}{'adds each':>11}{'adds in all':>13}{'wait mean':>11}{'work mean':>11}{'max':>8}"
    ]
    for name in dict.fromkeys(names.tolist()):
        which = names == name
        each = critical[:, which].mean()
        lines.append(
            f"{name:10}{which.sum():6}{each:11.2f}{each * which.sum():13.1f}"
            f"{wait[..., which].mean():11.2f}{work[..., which].mean():11.2f}{work[..., which].max():8.2f}"
        )
    return lines
