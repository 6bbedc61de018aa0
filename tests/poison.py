"""Content for memory that a kernel has not written yet: NaN, with the tags of future steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NAN_BF16, _NAN_FP32, _TAGS = 0x7FC10000, 0x7FC00001, 61


def poison(size: int) -> NDArray[np.uint8]:
    """So many bytes: by turns, two words of a bf16 NaN and a 16-bit tag, and one of an fp32 NaN and a 32-bit tag."""
    count = -(-size // 16)
    tags = (np.arange(count, dtype=np.uint32) % _TAGS) + 1
    words = np.stack([tags | _NAN_BF16, (tags + 1) | _NAN_BF16, tags, np.full(count, _NAN_FP32, np.uint32)], -1)
    return words.astype(np.uint32).reshape(-1).view(np.uint8)[:size]
