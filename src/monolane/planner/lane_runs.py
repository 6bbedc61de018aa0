"""What ``python -m monolane.bench delays`` measured of lanes that are apart on one GPU, beside the latency model.

Such lanes differ from GPUs in two ways: each reads at its share of the one memory's ceiling, and no wire lies between
them. So the model predicts them too, and the difference shows what it does not know about lanes: how far they drift
apart, and what they wait at the end of a token. That time is waiting and not reading, so it is not divided by a larger
bandwidth: the error bar of several GPUs has as many µs per exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges
from monolane.planner.latency import MODULES, Lanes, Latencies, Step, steps, token_time
from monolane.planner.precision import named
from monolane.planner.shape import Shape


@dataclass(frozen=True)
class LaneRun:
    """One delay of such a result, in bf16."""

    lanes: int
    values: int  # of an exchange
    exchanges: int  # per token
    work: tuple[Step, ...]
    us: float


def of_result(content: Mapping[str, Any], shape: Shape) -> Iterator[LaneRun]:
    """The runs of a result, which may come from a file; none where lanes were together."""
    lanes, tokens, points = content.get("lanes"), content.get("tokens"), content.get("points")
    if content.get("placement") != "apart" or not (_count(lanes) and _count(tokens) and isinstance(points, list)):
        return
    assert isinstance(lanes, int)
    assert isinstance(tokens, int)
    for point in points:
        delay, us = (point.get(key) if isinstance(point, dict) else None for key in ("delay", "us_per_token"))
        if isinstance(us, int | float) and 0 < us < math.inf and (delay == 0 or _count(delay)):
            assert isinstance(delay, int)
            # A result counts layers.
            work = steps(shape, named("bf16"), tokens // 2, Lanes(lanes, delay=MODULES * delay))
            yield LaneRun(lanes, shape.hidden, exchanges(shape), work, float(us))


def exchanges(shape: Shape) -> int:
    """Of a token: one for each module, and one for the head."""
    return MODULES * len(shape.layers) + 1


def unexplained_us(
    runs: Sequence[LaneRun], ceiling: float, latencies: Latencies, measured: MeasuredExchanges
) -> float | None:
    """The root mean square of what the runs took longer or shorter than predicted, per exchange; None without runs."""
    squares = []
    for run in runs:
        inside_us = measured.own_us(run.lanes, run.values)
        if inside_us is not None:
            exchange_us = inside_us + latencies.handoff_us
            predicted = token_time(run.work, ceiling / run.lanes, latencies, exchange_us).us
            squares.append(((run.us - predicted) / run.exchanges) ** 2)
    return math.sqrt(sum(squares) / len(squares)) if squares else None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20
