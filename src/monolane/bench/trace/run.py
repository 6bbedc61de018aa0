"""Makes and writes traces: the target answers twice without time stamps, to warm up and to be timed, then with them."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from monolane.bench import output_path
from monolane.bench.trace import perfetto
from monolane.bench.trace import picture as trace_picture
from monolane.bench.trace.stamps import Trace, report
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.sample import Sampling
from monolane.program.stage import Program
from monolane.progress import Progress
from monolane.target import open_target
from monolane.target.base import Request, Target, Token

CONTEXT = 2048
PROMPT_TOKENS, ANSWER_TOKENS = 128, 256
TRACED_FROM = 100  # the first traced decode pass: the caches are warm, the context is some 230 tokens
MOST_TOKENS = 32  # that can be traced; one token of a large model is a megabyte of trace
LONGEST_RUN_S, FEWEST_TOKENS = 2.0, 8  # a run without stamps ends after so long, but not with fewer tokens


@runtime_checkable
class Stamping(Target, Protocol):
    """A target that can record time stamps of its stages."""

    program: Program

    def trace(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """When each worker reached each stage, had its input and finished, in ns: [pass][worker][stage][3].

        The passes are decode passes, from number ``first`` on.
        """


@dataclass(frozen=True)
class Options:
    """The options of the command. They are checked before anything is traced."""

    tokens: int  # to trace
    device: str
    workers: int | None
    out: Path | None  # where the trace for Perfetto is written
    picture: Path | None
    lanes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise UsageError(f"{self.tokens} tokens cannot be traced.", f"Choose between 1 and {MOST_TOKENS}.")
        output_path.check(self.out, "trace.json")
        output_path.check(self.picture, "trace.svg")


def run(name: str, config: ModelConfig, weights: Weights, options: Options, progress: Progress) -> str:
    """Trace a model and write the files that the options name; returns the report."""
    trace = measure(name, config, weights, options, progress)
    for path, text in ((options.out, perfetto.text), (options.picture, trace_picture.text)):
        if path is not None:
            output_path.write(path, text(trace))
    return report(trace)


def measure(name: str, config: ModelConfig, weights: Weights, options: Options, progress: Progress) -> Trace:
    """Open a target for the model and trace it."""
    needed = PROMPT_TOKENS + ANSWER_TOKENS
    if config.context < needed:
        raise UsageError(
            f"{name} has a context of {config.context} tokens; a trace needs {needed}.", "Trace another model."
        )
    context = min(config.context, CONTEXT)
    target = open_target(
        config,
        weights,
        device=options.device,
        workers=options.workers,
        lanes=options.lanes,
        context=context,
        progress=progress,
    )
    with closing(target):
        if not isinstance(target, Stamping):
            raise UsageError(f"{target.name} keeps no time stamps.", "Use device cuda, or cpu with a C++ compiler.")
        prompt = np.random.default_rng(0).integers(0, config.vocab, PROMPT_TOKENS).tolist()
        return of_target(name, target, prompt, options.tokens)


def of_target(name: str, target: Stamping, prompt: list[int], tokens: int) -> Trace:
    """Trace ``tokens`` tokens, after two answers without stamps: one to warm up, one that is timed."""
    _answer(target, prompt)
    answer = _answer(target, prompt)
    us = (answer[-1].time_ns - answer[0].time_ns) / 1e3 / (len(answer) - 1)
    passes = tokens + 1
    request = Request(prompt, 0, TRACED_FROM + passes + 2, frozenset(), Sampling())
    stamps = target.trace(request, TRACED_FROM, passes)
    return Trace(f"{name}, {target.name}", target.program.begun, stamps, us, target.bytes_per_token)


def _answer(target: Target, prompt: list[int]) -> list[Token]:
    """The tokens of one answer. On a slow machine it is aborted after LONGEST_RUN_S."""
    run = target.run(Request(prompt, 0, ANSWER_TOKENS, frozenset(), Sampling()))
    made: list[Token] = []
    begin = time.monotonic()
    for batch in run:
        made += batch
        if time.monotonic() - begin > LONGEST_RUN_S and len(made) >= FEWEST_TOKENS:
            run.abort()
    return made
