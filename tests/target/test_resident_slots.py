from __future__ import annotations

import pytest

from monolane.target.slots import MAX_SLOTS, resident_slots


@pytest.mark.parametrize(
    ("cache_bytes", "available", "slots"),
    [(100, 1000, 5), (100, 199, 1), (100, 0, 1), (100, None, 1), (1, 10**12, MAX_SLOTS), (0, 1000, MAX_SLOTS)],
)
def test_conversations_stay_in_half_of_the_free_memory(cache_bytes: int, available: int | None, slots: int) -> None:
    assert resident_slots(cache_bytes, available) == slots
