"""Compares speeds that the makers of another engine published with their own formula, and with our latency model.

Their formula is: tokens per second = utilisation x bandwidth / active bytes. It has no latencies. Solved for the active
bytes, it shows the bytes per token from which a published speed was computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monolane.bench.measure.mixtures import MXFP4
from monolane.planner.calibration import Result
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.latency import MICRO
from monolane.planner.machines import MACHINES, Cluster
from monolane.planner.precision import PUBLISHED
from monolane.planner.prediction import Prediction, predict
from monolane.planner.source import from_entry

UTILISATION = 0.36
# The share of the nominal bandwidth of 8 MI300X that the publication calls effective. It gives none for 8 H200, but
# with the same share the formula yields exactly the published numbers.
EFFECTIVE_SHARE = 33.6 / 42.4
COUNT = 8  # GPUs
NODES = ("H200", "MI300X")
CONTEXT = 0  # the formula counts no KV cache


@dataclass(frozen=True)
class Published:
    """What a source publishes about a model."""

    model: str
    dtype: str
    active_billions: float  # of weights
    speeds: tuple[float, float]  # tokens per second on 8 GPUs of each of the NODES
    measured: bool = False  # not projected
    elsewhere: float | None = None  # tokens per second for the same, by another source
    bits: float = 16.0  # per weight, in the format that the source names
    machine_unsaid: bool = False  # the source gives one speed and does not name the machine


PUBLISHED_SPEEDS = (
    Published("laneformer-2b", "bf16", 2.2, (2100, 3000), measured=True),
    Published("qwen3-coder-next", "fp8", 3.0, (3650, 4000)),
    Published("gpt-oss-120b", PUBLISHED, 5.1, (2200, 2400)),
    Published("deepseek-v4-flash", PUBLISHED, 13.0, (1160, 1270)),
    Published("kimi-k2.6", PUBLISHED, 32.0, (325, 355), elsewhere=800, bits=4.0),
    Published("deepseek-v4-pro", PUBLISHED, 49.0, (440, 440), machine_unsaid=True),
)


@dataclass(frozen=True)
class PublishedSpeed:
    tokens_per_s: float
    measured: bool  # not projected


def published_speed(plan: Prediction) -> PublishedSpeed | None:
    """What was published of the model of a prediction on the same GPUs; None where nothing was."""
    machine, used = plan.cluster.machine.name, plan.lanes.count
    for published in PUBLISHED_SPEEDS:
        if CATALOGUE[published.model].title == plan.model.name and machine in NODES and used == COUNT:
            return PublishedSpeed(published.speeds[NODES.index(machine)], published.measured)
    return None


def nominal(node: str) -> float:
    """Bytes per second of all GPUs together, by the data sheet."""
    bandwidth = MACHINES[node].bandwidth
    assert bandwidth is not None
    return COUNT * bandwidth


def formula(active_bytes: float, node: str) -> float:
    """Tokens per second by the published formula."""
    return UTILISATION * EFFECTIVE_SHARE * nominal(node) / active_bytes


@dataclass(frozen=True)
class Comparison:
    """One published speed on one machine, and our prediction for the same."""

    published: Published
    node: str
    speed: float
    ours: Prediction
    one_gpu: float | None  # tokens per second that Monolane measured on a single one of the machines

    @property
    def active_bytes(self) -> float:
        """Weights that a token reads, counted from the config."""
        return self.ours.footprint.total.active - self.ours.footprint.cache.active

    @property
    def implied_bytes(self) -> float:
        """Bytes per token for which the formula gives the published speed."""
        return formula(1.0, self.node) / self.speed

    @property
    def formula(self) -> float:
        return formula(self.active_bytes, self.node)


def comparisons(results: Sequence[Result]) -> list[list[Comparison]]:
    """For every model, a comparison on each of the NODES."""
    return [[_comparison(published, at, results) for at in range(len(NODES))] for published in PUBLISHED_SPEEDS]


def _comparison(published: Published, at: int, results: Sequence[Result]) -> Comparison:
    node = NODES[at]
    cluster = Cluster(MACHINES[node], COUNT, COUNT)
    ours = predict(from_entry(CATALOGUE[published.model]), cluster, results, dtype=published.dtype, context=CONTEXT)
    return Comparison(published, node, published.speeds[at], ours, _measured(published, node, results))


def _measured(published: Published, node: str, results: Sequence[Result]) -> float | None:
    """From the decode result of the weights as published; gpt-oss is the only mixture of formats that is measured."""
    dtype = MXFP4 if published.dtype == PUBLISHED else published.dtype
    times = [
        result.us
        for result in results
        if (result.model, result.machine, result.dtype) == (published.model, node, dtype)
        and result.source.startswith("decode-")
    ]
    return MICRO / min(times) if times else None


@dataclass(frozen=True)
class Verdict:
    """Which of two contradicting published speeds the formula supports.

    ``by_*`` are its tokens per second on each of the NODES, and ``*_supports`` the published speeds that are nearer.
    """

    format_bytes: float  # per token, if every weight had the bits of the named format
    by_format: tuple[float, ...]  # with these bytes
    format_supports: tuple[float, ...]
    by_config: tuple[float, ...]  # with the bytes counted from the config
    config_supports: tuple[float, ...]


def verdict(rows: Sequence[Comparison]) -> Verdict | None:
    """None where the published speeds do not contradict each other."""
    published = rows[0].published
    if published.elsewhere is None:
        return None
    elsewhere = (published.elsewhere,) * len(rows)

    def nearer(found: tuple[float, ...]) -> tuple[float, ...]:
        near = _distance(found, published.speeds) < _distance(found, elsewhere)
        return published.speeds if near else elsewhere[:1]

    size = published.active_billions * 1e9 * published.bits / 8
    by_format = tuple(formula(size, row.node) for row in rows)
    by_config = tuple(row.formula for row in rows)
    return Verdict(size, by_format, nearer(by_format), by_config, nearer(by_config))


def _distance(found: Sequence[float], speeds: Sequence[float]) -> float:
    return sum(abs(math.log(value / speed)) for value, speed in zip(found, speeds, strict=True))
