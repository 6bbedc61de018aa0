from __future__ import annotations

import pytest

from monolane.target.caches import MAX_CACHES, resident_caches


@pytest.mark.parametrize(
    ("cache_bytes", "available", "caches"),
    [(100, 1000, 5), (100, 199, 1), (100, 0, 1), (100, None, 1), (1, 10**12, MAX_CACHES), (0, 1000, MAX_CACHES)],
)
def test_conversations_stay_in_half_of_the_free_memory(cache_bytes: int, available: int | None, caches: int) -> None:
    assert resident_caches(cache_bytes, available) == caches


def test_models_on_one_machine_share_that_half() -> None:
    assert [resident_caches(100, 1200, sharing) for sharing in (1, 2, 3, 100)] == [6, 3, 2, 1]
