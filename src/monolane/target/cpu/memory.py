"""Memory for tapes and caches: page-aligned, in huge pages where the system has them, resident only once touched."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray


def allocate(size: int, huge: bool = True) -> NDArray[np.uint8]:
    """``size`` zeroed bytes. Not ``huge``: small pages, for what may stay untouched in many places (a cache)."""
    pages = mmap.mmap(-1, max(size, 1))
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, size)
