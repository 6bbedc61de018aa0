"""Divides a model among lanes: which heads, which part of the FFN and of the vocabulary each lane has.

Counts that the number of lanes does not divide are padded with zeros, which add nothing to any sum. Where there are
fewer KV heads than lanes, several lanes have a copy of the same KV head, each with a part of its query heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.weights import Bf16Bits, Weights

_COLUMN_PARALLEL = ("o", "down")  # every lane has some columns, and a partial sum for every row
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
            "FFN rows": (config.ffn, self.ffn * lanes),
            "rows of the head": (config.vocab, self.vocab * lanes),
        }
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
    def widened(self) -> bool:
        return self._weights.widened

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole model's tensor."""
        return self._weights.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        part = name.rpartition(".")[2]
        if part in _COLUMN_PARALLEL:
            whole = self._weights.rows(name, start, stop)
            return np.ascontiguousarray(_picked(whole, self._places(part)))
        if part == "embed":
            return self._weights.rows(name, start, stop)
        config = self._shard.config
        source = "embed" if name == "head" and config.tied else name
        result = np.zeros((stop - start, config.hidden * self._head_width(part)), np.uint16)
        places = self._places(part)[start:stop]
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        for run in np.split(np.arange(len(places)), breaks):
            if len(run) and (first := int(places[run[0]])) >= 0:
                result[run] = self._weights.rows(source, first, first + len(run))
        return result

    def vector(self, name: str) -> NDArray[np.float32]:
        whole = self._weights.vector(name)
        shard, lanes = self._shard, self._shard.config.lanes
        part, is_bias = name.removesuffix(".bias").rpartition(".")[2], name.endswith(".bias")
        if is_bias and part in _COLUMN_PARALLEL:  # added once, although every lane has a part of the sum
            return whole if self._lane == 0 else np.zeros_like(whole)
        if is_bias:
            return _picked(whole, self._places(part))
        if lanes is not None and not lanes.shares_norms and part not in ("q_norm", "k_norm"):
            return np.split(whole, shard.lanes)[self._lane]
        return whole

    def _head_width(self, part: str) -> int:
        """Residual streams that the head reads side by side."""
        lanes = self._shard.config.lanes
        return lanes.count if part == "head" and lanes is not None and lanes.head == "lane" else 1

    def _places(self, part: str) -> NDArray[np.int64]:
        """The model's row (of o and down: column) behind each of the lane's, or _PADDING."""
        shard, size = self._shard, self._shard.config.head_dim
        if part in ("q", "o"):
            return _of_heads(shard.heads_of(self._lane), size)
        if part in ("k", "v"):
            return _of_heads(shard.kv_heads_of(self._lane), size)
        mine, whole = (shard.vocab, shard.config.vocab) if part == "head" else (shard.ffn, shard.config.ffn)
        places = np.arange(self._lane * mine, (self._lane + 1) * mine)
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
