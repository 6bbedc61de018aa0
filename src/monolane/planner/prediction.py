"""The plan itself: a model on a machine, whether it fits, what it can reach at best, and what it should take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monolane.cache import human_size
from monolane.errors import ResourceError, UsageError
from monolane.planner.calibration import Calibration, Result, calibrate, measured_ceiling
from monolane.planner.footprint import Footprint, footprint
from monolane.planner.latency import MICRO, Lanes, TokenTime, steps, token_time
from monolane.planner.machines import RESERVED, Cluster, Machine
from monolane.planner.precision import Precision
from monolane.planner.source import Described

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Ceiling:
    """Bytes per second that reads get on one lane, and who says so; a hand-off while nothing is read, where known."""

    bytes_per_s: float
    source: str
    handoff_us: float | None = None


@dataclass(frozen=True)
class Prediction:
    model: Described
    precision: Precision
    cluster: Cluster
    context: int
    lanes: Lanes
    footprint: Footprint
    ceiling: Ceiling
    time: TokenTime
    calibration: Calibration

    @property
    def tokens_per_s(self) -> float:
        return MICRO / self.time.us

    @property
    def error(self) -> float | None:
        """Relative, of the time."""
        return self.calibration.error

    @property
    def tokens_per_s_range(self) -> tuple[float, float] | None:
        return (
            None if self.error is None else (self.tokens_per_s / (1 + self.error), self.tokens_per_s * (1 + self.error))
        )

    def roofline_us(self, bandwidth: float) -> float:
        """If all bytes of the lane with the most were read at this many per second, and nothing else took time."""
        return self.footprint.total.lane_active / bandwidth * MICRO


def predict(
    model: Described,
    cluster: Cluster,
    results: Sequence[Result],
    *,
    dtype: str,
    context: int | None = None,
    delay: int | None = None,
    measured: Ceiling | None = None,
) -> Prediction:
    """``measured`` is the ceiling of this very machine, where it has been measured."""
    precision = model.precision(dtype)
    context = _context(model, context)
    lanes = Lanes(cluster.lanes, cluster.machine.exchange_us, _delay(model, delay, cluster.lanes))
    weight = footprint(model.shape, precision, context, lanes.count)
    _require_room(model, weight, cluster, context)
    ceiling = measured or ceiling_of(cluster.machine, results)
    calibration = calibrate(cluster.machine, results, ceiling.handoff_us)
    time = token_time(
        steps(model.shape, precision, context, lanes), ceiling.bytes_per_s, calibration.latencies, lanes.exchange_us
    )
    return Prediction(model, precision, cluster, context, lanes, weight, ceiling, time, calibration)


def ceiling_of(machine: Machine, results: Sequence[Result]) -> Ceiling:
    """As measured with the results, or assumed."""
    found = measured_ceiling(machine, results)
    if found is not None:
        return Ceiling(found, "measured, median of the results")
    assert machine.bandwidth is not None, "a machine without a nominal bandwidth has a measured ceiling"
    return Ceiling(machine.bandwidth * machine.ceiling_share, "assumed")


def _context(model: Described, asked: int | None) -> int:
    limit = model.shape.context
    if asked is None:
        return min(DEFAULT_CONTEXT, limit)
    if not 0 <= asked <= limit:
        raise UsageError(
            f"A context of {asked:,} tokens is not possible: {model.name} was made for at most {limit:,}.",
            f"Choose a context from 0 to {limit}.",
        )
    return asked


def _delay(model: Described, asked: int | None, lanes: int) -> int:
    delay = (model.delay if lanes > 1 else 0) if asked is None else asked
    most = 2 * len(model.shape.layers)
    if not 0 <= delay < most:
        raise UsageError(
            f"A delay of {delay} modules is not possible: {model.name} has {most}.", f"Choose from 0 to {most - 1}."
        )
    if delay and lanes == 1:
        raise UsageError("With one lane nothing is exchanged, so nothing is delayed.", "Leave --delay out.")
    return delay


def _require_room(model: Described, weight: Footprint, cluster: Cluster, context: int) -> None:
    """Refuse what does not fit, with the numbers."""
    total, room = weight.total, cluster.machine.room
    weights, cache = total.lane_held - weight.cache.lane_held, weight.cache.lane_held
    if total.lane_held <= room:
        return
    where = "a lane" if cluster.lanes > 1 else "it"
    raise ResourceError(
        f"{model.name} does not fit {cluster.name}: {where} would need {human_size(int(total.lane_held))} "
        f"({human_size(int(weights))} of weights, {human_size(int(cache))} of cache "
        f"for {context:,} tokens), but has {human_size(int(room))} "
        f"({human_size(cluster.machine.memory)} less {RESERVED:.0%}).",
        "Use more or larger GPUs, a smaller --dtype, or a shorter --context.",
    )
