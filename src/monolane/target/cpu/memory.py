"""Memory for tapes and KV caches: page-aligned, zeroed, and resident only once it is touched."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray


def allocate(size: int, huge: bool = True) -> NDArray[np.uint8]:
    """``size`` zeroed bytes, in huge pages where the system has them. Not ``huge``: in small pages, for memory of which
    much may never be touched (a KV cache)."""
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, size)
