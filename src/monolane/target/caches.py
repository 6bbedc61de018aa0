"""How many KV caches a target holds: each can keep one conversation for the requests that continue it."""

from __future__ import annotations

MAX_CACHES = 16


def resident_caches(cache_bytes: int, available: int | None, sharing: int = 1) -> int:
    """The number of caches of ``cache_bytes`` each that fit in half of the ``available`` bytes, from 1 to MAX_CACHES.
    ``available`` is what the weights have left; None where the system does not tell, which gives one cache. Where so
    many models are ``sharing`` the machine, each gets its part of that half."""
    return max(1, min(MAX_CACHES, (available or 0) // 2 // sharing // max(1, cache_bytes)))
