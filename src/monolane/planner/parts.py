"""The words a model is described in: how many weights of which kind there are, and what of a cache a token reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

CACHE_ELEMENT_BYTES = 2  # keys and values are kept in 16 bits, whatever the weights are kept in


class Part(StrEnum):
    """What weights are for: also the rows of the report, in this order."""

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
    """Elements that are kept in memory, and those of them that one token reads.

    ``units`` is the number of equal pieces that lanes can share; of 1, every lane keeps and reads all.
    """

    part: Part
    stored: int
    active: int
    units: int = 1


@dataclass(frozen=True)
class Cache:
    """Bytes of one layer's cache: kept in memory, and moved for one token. ``units`` as for weights."""

    held: int
    moved: int
    units: int


class Mixer(Protocol):
    """The part of a layer that looks at other positions."""

    @property
    def stages(self) -> int:
        """Steps that each wait for all workers of the one before."""

    def weights(self, hidden: int) -> tuple[Weights, ...]: ...

    def cache(self, context: int) -> Cache: ...


class FeedForward(Protocol):
    """The part of a layer that looks at one position."""

    @property
    def stages(self) -> int: ...

    @property
    def blind(self) -> int:
        """Stages whose weights are not known before the stage before has ended: nothing can be fetched ahead."""

    def weights(self, hidden: int) -> tuple[Weights, ...]: ...


def share(units: int, lanes: int) -> float:
    """The part of something in equal pieces that the lane with the most of them has."""
    return -(-units // lanes) / units


def matrix(part: Part, elements: int, units: int) -> Weights:
    """Weights of which every token reads all."""
    return Weights(part, elements, elements, units)


def small(elements: int) -> Weights:
    """Norms and biases: every lane has them."""
    return Weights(Part.SMALL, elements, elements)
