"""The types that describe a model to the planner: numbers of weights by part, sizes of caches, parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

CACHE_ELEMENT_BYTES = 2  # keys and values are bf16, whatever the format of the weights


class Part(StrEnum):
    """What weights are for. The report has a row for each, in this order."""

    ATTENTION = "attention"
    DENSE = "dense ffn"
    ROUTED = "routed experts"
    SHARED = "shared experts"
    ROUTER = "router"
    HEAD = "head"
    EMBEDDING = "embedding row"
    SMALL = "norms, biases"


@dataclass(frozen=True)
class Weights:
    """The weights of one part, counted in elements."""

    part: Part
    stored: int  # kept in memory
    active: int  # read for one token
    units: int = 1  # equal pieces that can be divided among lanes; with 1, every lane keeps and reads all


@dataclass(frozen=True)
class Cache:
    """The cache of one layer."""

    held: int  # bytes kept in memory
    moved: int  # bytes read and written for one token
    units: int  # as for weights


class Mixer(Protocol):
    """The part of a layer that mixes positions: a kind of attention."""

    @property
    def stages(self) -> int:
        """The number of stages of the program, each of which waits for a hand-off."""

    def weights(self, hidden: int) -> tuple[Weights, ...]: ...

    def cache(self, context: int) -> Cache: ...


class FeedForward(Protocol):
    """The part of a layer that works on each position alone."""

    @property
    def stages(self) -> int: ...

    @property
    def blind(self) -> int:
        """The number of stages whose weights cannot be prefetched, because the stage before chooses them."""

    def weights(self, hidden: int) -> tuple[Weights, ...]: ...


def share(units: int, lanes: int) -> float:
    """The share of ``units`` equal pieces that the lane with the most pieces has."""
    return -(-units // lanes) / units


def matrix(part: Part, elements: int, units: int) -> Weights:
    """Weights that every token reads completely."""
    return Weights(part, elements, elements, units)


def small(elements: int) -> Weights:
    """Norms and biases, which every lane has."""
    return Weights(Part.SMALL, elements, elements)
