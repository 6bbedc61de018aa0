"""Bytes in memory and bytes read per token of a model, part by part, for all lanes and for one lane."""

from __future__ import annotations

from dataclasses import dataclass

from monolane.planner.parts import Part, share
from monolane.planner.precision import Precision
from monolane.planner.shape import Shape

CACHE = "cache"


@dataclass(frozen=True)
class Row:
    """The sizes of one part, in bytes. ``lane_*`` are those of the lane that has the most."""

    part: str
    parameters: int  # 0 for the cache
    held: float  # in memory
    active: float  # read for one token
    lane_held: float
    lane_active: float

    def plus(self, other: Row) -> Row:
        return Row(
            self.part,
            self.parameters + other.parameters,
            self.held + other.held,
            self.active + other.active,
            self.lane_held + other.lane_held,
            self.lane_active + other.lane_active,
        )


@dataclass(frozen=True)
class Footprint:
    """The parts that the model has; the cache is the last row."""

    rows: tuple[Row, ...]

    @property
    def total(self) -> Row:
        total = Row("total", 0, 0.0, 0.0, 0.0, 0.0)
        for row in self.rows:
            total = total.plus(row)
        return total

    @property
    def cache(self) -> Row:
        return self.rows[-1]


def footprint(shape: Shape, precision: Precision, context: int, lanes: int) -> Footprint:
    found = {part: Row(part.value, 0, 0.0, 0.0, 0.0, 0.0) for part in Part}
    for weights, count in shape.all_weights():
        held, active = precision.stored_bytes(weights) * count, precision.active_bytes(weights) * count
        part = share(weights.units, lanes)
        more = Row("", weights.stored * count, held, active, held * part, active * part)
        found[weights.part] = found[weights.part].plus(more)
    cache = Row(CACHE, 0, 0.0, 0.0, 0.0, 0.0)
    for layer, count in shape.kinds:
        one = layer.mixer.cache(context)
        part = share(one.units, lanes)
        held, moved = one.held * count, one.moved * count
        cache = cache.plus(Row("", 0, held, moved, held * part, moved * part))
    return Footprint((*(row for row in found.values() if row.active), cache))
