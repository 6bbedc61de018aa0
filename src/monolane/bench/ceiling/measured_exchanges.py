"""The exchanges of a kept ceiling, for the planner: times between those of the numbers of values that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class MeasuredExchanges:
    """Exchanges of each worker's own rows among lanes of one GPU while its memory is idle."""

    points: tuple[tuple[int, int, float], ...]  # lanes, values, µs; sorted

    def own_us(self, lanes: int, values: int) -> float | None:
        """Of the least measured number of lanes that is not smaller; None where either number exceeds all measured."""
        least = min((measured for measured, _, _ in self.points if measured >= lanes), default=None)
        found = [(size, us) for measured, size, us in self.points if measured == least]
        for (fewer, less), (more, longer) in pairwise(((0, found[0][1]), *found) if found else ()):
            if values <= more:
                return less + (longer - less) * (values - fewer) / (more - fewer)
        return None


def of_result(result: Mapping[str, Any]) -> MeasuredExchanges | None:
    """The exchanges of a result of ``monolane ceiling``, which may come from a file; None where it has none."""
    found = result.get("exchanges")
    points = {
        (exchange["lanes"], exchange["values"]): float(exchange["own_us"])
        for exchange in (found if isinstance(found, list) else ())
        if isinstance(exchange, dict) and exchange.get("streaming_bytes") == 0 and _usable(exchange)
    }
    return MeasuredExchanges(tuple((*key, us) for key, us in sorted(points.items()))) if points else None


def _usable(exchange: dict[str, Any]) -> bool:
    numbers = [exchange.get(key) for key in ("lanes", "values", "own_us")]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers[:2])
    return whole and all(isinstance(number, int | float) and 0 < number < math.inf for number in numbers)
