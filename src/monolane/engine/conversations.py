"""Which conversation lies in which of the target's caches, and where a request goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """A request's cache: its first ``cached`` tokens are there, once they have been copied from ``source``, if any."""

    slot: int
    cached: int
    source: int | None = None


class Conversations:
    """Knows the tokens in every cache. A request goes where most of it lies already; where nothing of it lies
    anywhere, it takes the place of the conversation that was not used for longest."""

    def __init__(self, slots: int) -> None:
        self._held: list[Tokens] = [_array(()) for _ in range(slots)]
        self._order = list(range(slots))  # least recently used first

    def place(self, tokens: Sequence[int]) -> Place:
        """Where a request goes. The place is marked as used, and holds what is certain: the shared beginning."""
        wanted = _array(tokens)
        shared = [shared_prefix(held, wanted) for held in self._held]
        best = max(self._order, key=lambda slot: (shared[slot], self._order.index(slot)))
        place = self._choose(best, shared[best])
        self._order.remove(place.slot)
        self._order.append(place.slot)
        self._held[place.slot] = wanted[: place.cached]
        return place

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        """These tokens are in the cache now."""
        self._held[slot] = _array(tokens)

    def forget(self, slot: int) -> None:
        """Nobody knows what is in the cache."""
        self._held[slot] = _array(())

    def _choose(self, best: int, shared: int) -> Place:
        # The same conversation goes on where it keeps at least half of what is there: turns are edited, thoughts are
        # dropped. Less in common is another conversation that begins alike: it gets a cache of its own, and a copy.
        if shared and 2 * shared >= len(self._held[best]):
            return Place(best, shared)
        victim = next((slot for slot in self._order if not len(self._held[slot])), None)
        if victim is None:
            victim = next((slot for slot in self._order if slot != best), best) if shared else self._order[0]
        return Place(victim, shared, best if shared and victim != best else None)


def shared_prefix(held: Tokens, wanted: Tokens) -> int:
    """How many tokens at the start are the same; at least one of those wanted is left to compute."""
    limit = min(len(held), len(wanted) - 1)
    different = np.flatnonzero(held[:limit] != wanted[:limit])
    return int(different[0]) if len(different) else limit


def _array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, np.int64)
