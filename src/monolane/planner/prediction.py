"""Predicts a model on a machine: whether it fits, its roofline, and its time per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges
from monolane.cache import human_size
from monolane.errors import ResourceError, UsageError
from monolane.planner.calibration import (
    EXPERTS,
    LOW_BIT,
    OWN_LANES,
    Calibration,
    Result,
    calibrate,
    measured_ceiling,
    measured_exchanges,
    measured_lane_runs,
    root_mean_square,
)
from monolane.planner.exchange import ExchangeTime, exchange_time
from monolane.planner.footprint import Footprint, footprint
from monolane.planner.lane_runs import exchanges as exchanges_of
from monolane.planner.lane_runs import unexplained_us
from monolane.planner.latency import MICRO, Lanes, TokenTime, steps, token_time
from monolane.planner.machines import RESERVED, Cluster, Machine
from monolane.planner.precision import Precision
from monolane.planner.source import Described

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Ceiling:
    """The read ceiling of one lane."""

    bytes_per_s: float
    source: str  # measured or assumed, in words
    handoff_us: float | None = None  # of a hand-off while memory is idle, where it was measured
    exchanges: MeasuredExchanges | None = None  # among lanes of one such GPU, where they were measured


@dataclass(frozen=True)
class LanesError:
    """What several lanes add to the error of a token, in µs."""

    unexplained_us: float  # as of lanes that are apart on one GPU
    wire_us: float  # if the wire, whose length is assumed, took twice as long


@dataclass(frozen=True)
class Prediction:
    model: Described
    precision: Precision
    cluster: Cluster
    context: int
    lanes: Lanes
    exchange: ExchangeTime
    footprint: Footprint
    ceiling: Ceiling
    time: TokenTime
    calibration: Calibration
    lanes_error: LanesError | None = None  # None: one lane, or nothing measured

    @property
    def tokens_per_s(self) -> float:
        return MICRO / self.time.us

    @property
    def error(self) -> float | None:
        """The relative error of the predicted time; None where measurements do not cover all of it."""
        found = None if self.uncovered else root_mean_square(self.calibration.comparable(self.traits))
        if found is None or self.lanes_error is None:
            return found
        lanes = self.lanes_error
        return math.hypot(found, lanes.unexplained_us / self.time.us, lanes.wire_us / self.time.us)

    @property
    def uncovered(self) -> list[str]:
        """What the error of the calibration does not cover, because it was not measured so."""
        calibration, machine = self.calibration, self.cluster.machine
        found = []
        if calibration.from_machine not in (None, machine.name):
            carried = calibration.carried
            scaled = f", hand-offs x {carried:.2f} as 'monolane ceiling' found" if carried is not None else ""
            found.append(f"the latencies of {machine.name} (taken from {calibration.from_machine}{scaled})")
        if self.lanes.count > 1 and self.lanes_error is None:
            inside = "measured inside one GPU alone" if self.exchange.measured else "none has been measured"
            found.append(f"exchanges ({inside})")
        return found + [trait for trait in (OWN_LANES, LOW_BIT, EXPERTS) if trait in self.traits - calibration.covered]

    @property
    def traits(self) -> frozenset[str]:
        """What makes it harder to predict than a plain model in bf16 on one GPU."""
        found = {
            LOW_BIT: self.has_low_bit,
            EXPERTS: any(layer.ffn.blind for layer, _ in self.model.shape.kinds),
            OWN_LANES: self.lanes.count == 1 and self.model.delay > 0,  # a Laneformer has lanes on one GPU too
        }
        return frozenset(trait for trait, has in found.items() if has)

    @property
    def has_low_bit(self) -> bool:
        return any(self.precision.is_low_bit(weights.part) for weights, _ in self.model.shape.all_weights())

    @property
    def tokens_per_s_range(self) -> tuple[float, float] | None:
        """Within the error; no token is faster than the ceiling allows."""
        if self.error is None:
            return None
        fastest = max(self.tokens_per_s, MICRO / self.roofline_us(self.ceiling.bytes_per_s))
        return self.tokens_per_s / (1 + self.error), min(self.tokens_per_s * (1 + self.error), fastest)

    def roofline_us(self, bandwidth: float) -> float:
        """The time to read the bytes per token of the lane that has the most, at ``bandwidth`` bytes per second."""
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
    """Predict; ``measured`` is the ceiling of the cluster's machine, where ``monolane ceiling`` has measured it."""
    precision = model.precision(dtype)
    context = _context(model, context)
    delay = _delay(model, delay, cluster.lanes)
    weight = footprint(model.shape, precision, context, cluster.lanes)
    _require_room(model, weight, cluster, context)
    ceiling = measured or ceiling_of(cluster.machine, results)
    calibration = calibrate(cluster.machine, results, ceiling.handoff_us)
    exchanges = ceiling.exchanges or measured_exchanges(cluster.machine, results)
    handoff_us = calibration.latencies.handoff_us
    exchange = exchange_time(cluster.machine, cluster.lanes, model.shape.hidden, exchanges, handoff_us)
    lanes = Lanes(cluster.lanes, exchange.us, delay)
    work = steps(model.shape, precision, context, lanes)
    time = token_time(work, ceiling.bytes_per_s, calibration.latencies, lanes.exchange_us)
    found = Prediction(model, precision, cluster, context, lanes, exchange, weight, ceiling, time, calibration)
    runs = [run for run in measured_lane_runs(cluster.machine, results) if run.lanes >= cluster.lanes]
    if cluster.lanes == 1 or exchanges is None or not exchange.measured:
        return found
    each_us = unexplained_us(runs, ceiling.bytes_per_s, calibration.latencies, exchanges)
    if each_us is None:
        return found
    longer = token_time(work, ceiling.bytes_per_s, calibration.latencies, exchange.us + exchange.wire_us)
    return replace(found, lanes_error=LanesError(each_us * exchanges_of(model.shape), longer.us - time.us))


def ceiling_of(machine: Machine, results: Sequence[Result]) -> Ceiling:
    """The ceiling that was measured with the results, or else an assumed one."""
    found = measured_ceiling(machine, results)
    if found is not None:
        return Ceiling(found, "measured, median of the results")
    assert machine.bandwidth is not None, "a machine without a nominal bandwidth has a measured ceiling"
    return Ceiling(machine.bandwidth * machine.ceiling_share, "assumed")


def _context(model: Described, option: int | None) -> int:
    limit = model.shape.context
    if option is None:
        return min(DEFAULT_CONTEXT, limit)
    if not 0 <= option <= limit:
        raise UsageError(
            f"A context of {option:,} tokens is not possible: {model.name} was made for at most {limit:,}.",
            f"Choose a context from 0 to {limit}.",
        )
    return option


def _delay(model: Described, option: int | None, lanes: int) -> int:
    delay = (model.delay if lanes > 1 else 0) if option is None else option
    most = 2 * len(model.shape.layers)
    if not 0 <= delay < most:
        raise UsageError(
            f"A delay of {delay} modules is not possible: {model.name} has {most}.", f"Choose from 0 to {most - 1}."
        )
    if delay and lanes == 1:
        raise UsageError("With one lane nothing is exchanged, so nothing is delayed.", "Leave --delay out.")
    return delay


def _require_room(model: Described, weight: Footprint, cluster: Cluster, context: int) -> None:
    """Refuse a model that does not fit into memory, with the numbers."""
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
        "Use more or larger GPUs, smaller --weights, or a shorter --context.",
    )
