"""Divides a model among lanes: which heads, which part of the FFN and of the vocabulary each lane has.

Counts that the number of lanes does not divide are padded with zeros, which add nothing to any sum. Where there are
fewer KV heads than lanes, several lanes have a copy of the same KV head, each with a part of its query heads. Of every
expert each lane has a part, so that lanes have equal work whichever experts are chosen; all of them have the router.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.format import BF16, BLOCK, BLOCK_GROUPS, GROUP, Format, FormatOf, QuantRows, groups_of
from monolane.model.weights import Bf16Bits, Weights

_COLUMN_PARALLEL = ("o", "down")  # every lane has some columns, and a partial sum for every row
_REPLICATED = ("embed", "router", "shared_router")  # every lane has the whole matrix
_EXPERTS, _SHARED = "experts", "shared"  # in the names of matrices of experts, before the last part
_PADDING = -2  # in the place of a row; no row follows it, so that runs of consecutive rows end there

Number = TypeVar("Number", np.uint16, np.float32)


@dataclass(frozen=True)
class Shard:
    """What one lane has of a model: sizes are the same for all lanes."""

    config: ModelConfig
    lanes: int

    @property
    def copies(self) -> int:
        """Lanes that share a KV head; 1 unless there are fewer KV heads than lanes."""
        return max(1, self.lanes // self.config.kv_heads)

    @property
    def group(self) -> int:
        """Query heads of each KV head of a lane."""
        return -(-self.config.heads // self.config.kv_heads // self.copies)

    @property
    def kv_heads(self) -> int:
        return -(-self.config.kv_heads * self.copies // self.lanes)

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def ffn(self) -> int:
        return -(-self.config.ffn // self.lanes)

    @property
    def expert_ffn(self) -> int:
        """Of each expert; whole groups, so that low-bit columns are not cut."""
        return self._of_experts(self.config.experts.ffn if self.config.experts else 0)

    @property
    def shared_ffn(self) -> int:
        """Of the shared expert."""
        return self._of_experts(self.config.experts.shared_ffn if self.config.experts else 0)

    def _of_experts(self, ffn: int) -> int:
        return ffn if self.lanes == 1 else -(-ffn // (self.lanes * GROUP)) * GROUP

    @property
    def vocab(self) -> int:
        return -(-self.config.vocab // self.lanes)

    def kv_heads_of(self, lane: int) -> list[int | None]:
        """The model's KV head behind each KV head of a lane; None: padding."""
        places = range(lane * self.kv_heads, (lane + 1) * self.kv_heads)
        return [place // self.copies if place < self.config.kv_heads * self.copies else None for place in places]

    def heads_of(self, lane: int) -> list[int | None]:
        """The model's query head behind each query head of a lane; None: padding."""
        found: list[int | None] = []
        whole = self.config.heads // self.config.kv_heads
        for place, kv_head in enumerate(self.kv_heads_of(lane), lane * self.kv_heads):
            for number in range(place % self.copies * self.group, (place % self.copies + 1) * self.group):
                found.append(None if kv_head is None or number >= whole else kv_head * whole + number)
        return found

    def notes(self) -> list[str]:
        """What is padded or stored more than once, a sentence each."""
        config, lanes, found = self.config, self.lanes, []
        if self.copies > 1:
            found.append(f"each of the {config.kv_heads} KV heads is on {self.copies} lanes")
        padded = {
            "KV heads": (config.kv_heads * self.copies, self.kv_heads * lanes),
            "query heads": (config.heads, self.heads * lanes),
            "rows of the head": (config.vocab, self.vocab * lanes),
        }
        experts = config.experts
        if experts is None or not all(experts.layers):
            padded["FFN rows"] = config.ffn, self.ffn * lanes
        if experts is not None:
            padded["FFN rows of each expert"] = experts.ffn, self.expert_ffn * lanes
            padded["FFN rows of the shared expert"] = experts.shared_ffn, self.shared_ffn * lanes
        found += [f"{had} {name} are padded to {have}" for name, (had, have) in padded.items() if had != have]
        return found


class LaneWeights:
    """The weights of one lane: a model's weights under the same names, with the sizes of the shard."""

    def __init__(self, weights: Weights, shard: Shard, lane: int) -> None:
        self._weights = weights
        self._shard = shard
        self._lane = lane

    @property
    def identity(self) -> str:
        return f"{self._weights.identity}, lane {self._lane} of {self._shard.lanes}"

    @property
    def converted(self) -> bool:
        return self._weights.converted

    @property
    def widened(self) -> tuple[str, ...]:
        return self._weights.widened

    def format(self, name: str) -> Format:
        return lane_formats(self._weights.format, self._shard)(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole model's tensor."""
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        kind, part = _parts(name)
        if part in _REPLICATED:
            return self._weights.rows(name, start, stop)
        if part in _COLUMN_PARALLEL:
            whole = self._weights.rows(name, start, stop)
            return np.ascontiguousarray(_picked(whole, _columns_of(self._shard, self._lane, kind, part)))
        result = np.zeros((stop - start, self._shard.config.hidden * self._head_width(part)), np.uint16)
        for run, first in self._row_runs(kind, part, start, stop):
            result[run] = self._weights.rows(_source(name, self._shard), first, first + len(run))
        return result

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        kind, part = _parts(name)
        if part in _REPLICATED:
            return self._weights.quants(name, start, stop)
        format = self.format(name)
        if part in _COLUMN_PARALLEL:
            places = _columns_of(self._shard, self._lane, kind, part)
            whole, groups = self._weights.quants(name, start, stop), places[::GROUP] // GROUP
            result = QuantRows.zeros(format, stop - start, len(groups))
            picked = groups >= 0
            for mine, theirs in zip(result.arrays[:3], whole.arrays[:3], strict=True):
                mine[:, picked] = theirs[:, groups[picked]]
            first = groups[::BLOCK_GROUPS]
            result.blocks[:, first >= 0] = whole.blocks[:, first[first >= 0] // BLOCK_GROUPS]
            return result
        width = self._shard.config.hidden * self._head_width(part)
        result = QuantRows.zeros(format, stop - start, groups_of(width))
        for run, row in self._row_runs(kind, part, start, stop):
            result.put(run, self._weights.quants(_source(name, self._shard), row, row + len(run)))
        return result

    def _row_runs(self, kind: str, part: str, start: int, stop: int) -> Iterator[tuple[NDArray[np.int64], int]]:
        """(consecutive rows of the result, the first of the model's rows behind them), without padding."""
        places = _rows_of(self._shard, self._lane, kind, part)[start:stop]
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        for run in np.split(np.arange(len(places)), breaks):
            if len(run) and (first := int(places[run[0]])) >= 0:
                yield run, first

    def vector(self, name: str) -> NDArray[np.float32]:
        whole = self._weights.vector(name)
        shard, lanes = self._shard, self._shard.config.lanes
        (kind, part), is_bias = _parts(name.removesuffix(".bias")), name.endswith(".bias")
        if part in _REPLICATED:
            return whole
        if part == "sinks":
            return _picked(whole, _of_heads(shard.heads_of(self._lane), 1))
        if is_bias and part in _COLUMN_PARALLEL:  # added once, although every lane has a part of the sum
            return whole if self._lane == 0 else np.zeros_like(whole)
        if is_bias:
            return _picked(whole, _rows_of(shard, self._lane, kind, part))
        if lanes is not None and not lanes.shares_norms and part not in ("q_norm", "k_norm"):
            return np.split(whole, shard.lanes)[self._lane]
        return whole

    def _head_width(self, part: str) -> int:
        """Residual streams that the head reads side by side."""
        lanes = self._shard.config.lanes
        return lanes.count if part == "head" and lanes is not None and lanes.head == "lane" else 1


def lane_formats(formats: FormatOf, shard: Shard) -> FormatOf:
    """The formats of the matrices of lanes: those of the model, but bf16 where lanes would cut a group or, in two-level
    formats, a super-block of columns, or where columns are ordered."""

    def format(name: str) -> Format:
        found = formats(_source(name, shard))
        kind, part = _parts(name)
        if not found.is_low_bit or part not in _COLUMN_PARALLEL:
            return found
        if found.ordered:
            return BF16
        unit = BLOCK if found.scales and found.scales.per_block else GROUP
        whole = all(_is_whole(_columns_of(shard, lane, kind, part), unit) for lane in range(shard.lanes))
        return found if whole else BF16

    return format


def _source(name: str, shard: Shard) -> str:
    """With several lanes a tied head has rows of its own, which are those of the embedding."""
    return "embed" if name == "head" and shard.config.tied else name


def _is_whole(places: NDArray[np.int64], unit: int) -> bool:
    """Whether columns come in whole units, each a unit of the model or padding."""
    if len(places) % unit:
        return False
    units = places.reshape(-1, unit)
    first = units[:, :1]
    return bool(
        np.all((units == np.where(first < 0, _PADDING, first + np.arange(unit))) & ((first < 0) | (first % unit == 0)))
    )


def _parts(name: str) -> tuple[str, str]:
    """Of the name of a matrix: whether it is of experts or of the shared one, and its last part."""
    *before, part = name.split(".")
    return before[-1] if before and before[-1] in (_EXPERTS, _SHARED) else "", part


def _rows_of(shard: Shard, lane: int, kind: str, part: str) -> NDArray[np.int64]:
    """The model's row behind each of a lane's, or _PADDING. Those of experts follow each other."""
    size = shard.config.head_dim
    if part == "q":
        return _of_heads(shard.heads_of(lane), size)
    if part in ("k", "v"):
        return _of_heads(shard.kv_heads_of(lane), size)
    if part == "head":
        return _share(shard.vocab, shard.config.vocab, lane)
    places = _of_ffn(shard, lane, kind)
    if kind != _EXPERTS or shard.config.experts is None:
        return places
    begins = shard.config.experts.ffn * np.arange(shard.config.experts.count)[:, None]
    return np.where(places < 0, _PADDING, begins + places).reshape(-1)


def _columns_of(shard: Shard, lane: int, kind: str, part: str) -> NDArray[np.int64]:
    """The same of the columns of o and down."""
    return _of_heads(shard.heads_of(lane), shard.config.head_dim) if part == "o" else _of_ffn(shard, lane, kind)


def _of_ffn(shard: Shard, lane: int, kind: str) -> NDArray[np.int64]:
    experts = shard.config.experts
    if experts is None or not kind:
        return _share(shard.ffn, shard.config.ffn, lane)
    if kind == _EXPERTS:
        return _share(shard.expert_ffn, experts.ffn, lane)
    return _share(shard.shared_ffn, experts.shared_ffn, lane)


def _share(mine: int, whole: int, lane: int) -> NDArray[np.int64]:
    places = np.arange(lane * mine, (lane + 1) * mine)
    return np.where(places < whole, places, _PADDING)


def _of_heads(heads: list[int | None], size: int) -> NDArray[np.int64]:
    return np.concatenate(
        [np.full(size, _PADDING) if head is None else np.arange(head * size, (head + 1) * size) for head in heads]
    )


def _picked(values: NDArray[Number], places: NDArray[np.int64]) -> NDArray[Number]:
    """Those elements of the last axis, 0 for padding."""
    picked: NDArray[Number] = values[..., np.maximum(places, 0)]
    picked[..., places < 0] = 0
    return picked
