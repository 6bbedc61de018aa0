"""Prefix caching: which tokens each of the target's KV caches holds, and which cache a request uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """The cache that a request uses. The first ``cached`` tokens of the request are in it, after a copy from the cache
    ``source`` where that is not None."""

    cache: int
    cached: int
    source: int | None = None


class PrefixCaches:
    """The tokens in every cache. A request uses the cache that shares the longest prefix with it; where no cache shares
    a token, the least recently used one is overwritten."""

    def __init__(self, caches: int) -> None:
        self._held: list[Tokens] = [_array(()) for _ in range(caches)]
        self._order = list(range(caches))  # least recently used first

    def place(self, tokens: Sequence[int]) -> Placement:
        """Choose the cache for a request. The cache counts as used, and as holding no more than the shared prefix until
        ``keep`` says what the request has left in it."""
        wanted = _array(tokens)
        shared = [shared_prefix(held, wanted) for held in self._held]
        best = max(self._order, key=lambda cache: (shared[cache], self._order.index(cache)))
        placement = self._choose(best, shared[best])
        self._order.remove(placement.cache)
        self._order.append(placement.cache)
        self._held[placement.cache] = wanted[: placement.cached]
        return placement

    def keep(self, cache: int, tokens: Sequence[int]) -> None:
        """Record that the cache now holds exactly these tokens."""
        self._held[cache] = _array(tokens)

    def forget(self, cache: int) -> None:
        """Record that the contents of the cache are unknown."""
        self._held[cache] = _array(())

    def _choose(self, best: int, shared: int) -> Placement:
        # A request that reuses at least half of a cache is taken for the same conversation, with a turn edited or its
        # reasoning dropped, and goes on there. One that shares less is another conversation with, for example, the same
        # system prompt: it gets another cache and a copy of the prefix, so that the first conversation stays whole.
        if shared and 2 * shared >= len(self._held[best]):
            return Placement(best, shared)
        victim = next((cache for cache in self._order if not len(self._held[cache])), None)
        if victim is None:
            victim = next((cache for cache in self._order if cache != best), best) if shared else self._order[0]
        return Placement(victim, shared, best if shared and victim != best else None)


def shared_prefix(held: Tokens, wanted: Tokens) -> int:
    """The number of leading tokens that both have. At most all but one of ``wanted``: a target must compute at least
    one token of a request."""
    limit = min(len(held), len(wanted) - 1)
    different = np.flatnonzero(held[:limit] != wanted[:limit])
    return int(different[0]) if len(different) else limit


def _array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, np.int64)
