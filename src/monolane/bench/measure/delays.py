"""Measures how long the lanes of a Laneformer wait for each other, with delays of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure import shapes, timing
from monolane.bench.measure.surroundings import PACKAGES
from monolane.bench.report import record
from monolane.errors import UsageError
from monolane.program.stage import Program
from monolane.progress import Progress
from monolane.target import open_target
from monolane.target.base import Request, Target

PROMPT_TOKENS = 128
WAITS_FROM, WAITS_PASSES = 100, 32  # the decode passes whose waits are measured: the caches are warm
METHOD = (
    "us_per_token: (time of the last token - time of the first) / (n - 1) by the device's clock, median of the rounds; "
    "of_lanes_us: the time of a token that each lane waits for others, in a request of its own with clocks in the "
    "kernel, mean over tokens and over the lane's workers; exposed_us: of the lane that waits least. All other lanes "
    "wait for that one, too, which is slower than they are: so exposed_us is what the exchange adds to a token, and "
    "mean_us, the mean over all lanes, has the differences between lanes in it; exposed_in_layers_us: of the same "
    "lane, without combining the streams and finding the token. Weights are made up"
)
Say = Callable[[str], None]


@runtime_checkable
class Waiting(Target, Protocol):
    """A target that can measure how long its workers wait for other lanes."""

    program: Program

    def lane_waits(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        """In ns, [pass][lane][worker][stage], of decode passes from number ``first`` on."""


@dataclass(frozen=True)
class Options:
    """The options of the command. They are checked before anything is measured."""

    shape: str
    delays: tuple[int, ...]
    placement: str
    tokens: int
    rounds: int
    out: Path
    keep: bool = False  # replace a result that git tracks

    def __post_init__(self) -> None:
        config = shapes.named(self.shape)
        if config.lanes is None:
            raise UsageError(f"{self.shape} has no lanes of its own.", "Choose a Laneformer.")
        longest = config.context - PROMPT_TOKENS
        if not 2 <= self.tokens <= longest:
            raise UsageError(f"--tokens is {self.tokens}.", f"Choose between 2 and {longest}.")
        if self.rounds < 1:
            raise UsageError(f"--rounds is {self.rounds}.", "Choose 1 or more.")


def parse(text: str) -> tuple[int, ...]:
    """Delays as the command line gives them."""
    try:
        delays = tuple(int(word) for word in text.split(","))
    except ValueError:
        delays = (-1,)
    if min(delays) < 0:
        raise UsageError(f"--delays is {text!r}.", "Give numbers of layers, such as 0,1,2,4.")
    return delays


def run(options: Options, progress: Progress, say: Say) -> dict[str, Any]:
    """Measure all delays, one model after the other, and write the result."""
    from monolane.target.cuda.opening import required_gpu

    gpu = record.gpu(required_gpu())
    points, names = [], []
    for delay in options.delays:
        point, name = _measure(options, delay, progress)
        points.append(point)
        names.append(name)
        say(f"delay {delay}: {point['us_per_token']:,.1f} µs/token, {point['exposed_us']:,.1f} µs of it exposed")
    config = shapes.named(options.shape)
    result = {
        "benchmark": "delays",
        "model": options.shape,
        "dtype": "bf16",
        "device": names[0],
        "placement": options.placement,
        "lanes": config.lanes.count if config.lanes else 1,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "points": points,
        "method": METHOD,
        "machine": record.machine() | {"gpu": gpu},
        "versions": record.versions(*PACKAGES["cuda"]),
    }
    say(record.written(f"delays-{options.shape}-{options.placement}", result, options.out, options.keep))
    return result


def _measure(options: Options, delay: int, progress: Progress) -> tuple[dict[str, Any], str]:
    """One delay: the numbers of its row, and the name of the target."""
    config = shapes.named(options.shape)
    assert config.lanes is not None
    config = replace(config, lanes=replace(config.lanes, delay=delay))
    context = PROMPT_TOKENS + max(options.tokens, WAITS_FROM + WAITS_PASSES + 2)
    weights = shapes.MadeUpWeights(config)
    target = open_target(
        config, weights, device="cuda", placement=options.placement, context=context, progress=progress
    )
    with closing(target):
        assert isinstance(target, Waiting)
        prompt = np.random.default_rng(0).integers(0, config.vocab, PROMPT_TOKENS).tolist()
        request = timing.fixed_length(prompt, options.tokens)
        timing.ask(target, request)  # to warm up
        answers = [timing.ask(target, request) for _ in range(options.rounds)]
        request = timing.fixed_length(prompt, WAITS_FROM + WAITS_PASSES + 2)
        waits = target.lane_waits(request, WAITS_FROM, WAITS_PASSES) / 1e3
        in_layers = np.array([getattr(stage, "layer", None) is not None for stage in target.program.begun])
        of_lanes = waits.sum(3).mean((0, 2))
        least = int(of_lanes.argmin())
        point = {
            "delay": delay,
            "us_per_token": median(float(answer.gaps_us.mean()) for answer in answers),
            "exposed_us": float(of_lanes[least]),
            "exposed_in_layers_us": float(waits[:, least][..., in_layers].sum(2).mean()),
            "mean_us": float(of_lanes.mean()),
            "of_lanes_us": of_lanes.tolist(),
        }
        return point, target.name
