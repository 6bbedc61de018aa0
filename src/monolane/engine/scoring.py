"""The logprobs of a prompt's own tokens, from the logits after each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.engine.messages import Scored

ROWS = 16  # of logits at a time: the heartbeat of the process needs a turn in between
MAX_BYTES = 2 << 30  # of the logits of one prompt


def scored(logits: NDArray[np.float32], tokens: Sequence[int], top: int) -> list[Scored]:
    """``logits``: [tokens, vocab]. The last row is about the token that follows the prompt, and is left out."""
    entries = []
    for first in range(0, len(tokens) - 1, ROWS):
        rows = logits[first : min(first + ROWS, len(tokens) - 1)].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        for row, token in zip(rows, tokens[first + 1 :], strict=False):
            best = np.argpartition(-row, top)[:top] if 0 < top < len(row) else np.arange(len(row) if top else 0)
            best = best[np.lexsort((best, -row[best]))]
            entries.append(Scored(float(row[token]), [(int(other), float(row[other])) for other in best]))
    return entries
