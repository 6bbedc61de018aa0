"""How many conversations a target keeps."""

from __future__ import annotations

MAX_SLOTS = 16


def resident_slots(cache_bytes: int, available: int | None) -> int:
    """How many caches fit half of the memory that the weights have left; None: nobody knows how much that is."""
    return max(1, min(MAX_SLOTS, (available or 0) // 2 // max(1, cache_bytes)))
