"""The choice of experts: the definition of ``Routing``, which every target follows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from monolane.program.stage import Routing, Scoring

Floats = NDArray[np.float32]


def choose(routing: Routing, logits: Floats) -> tuple[NDArray[np.int64], Floats]:
    """(experts, weights), [row][chosen]: for each row of the routing's buffer those with the highest logits, of equal
    ones the first, in order of their index."""
    mine = logits[:, routing.first : routing.first + routing.count]
    # A stable sort of descending logits leaves equal ones in order of their index.
    experts = np.sort(np.argsort(-mine, axis=1, kind="stable")[:, : routing.chosen], axis=1)
    found = np.take_along_axis(mine, experts, 1)
    if routing.scoring is Scoring.SIGMOID:
        return experts, (1 / (1 + np.exp(-found))).astype(np.float32)
    highest = found.max(1, keepdims=True)
    powers = np.exp(found - highest)
    over = powers if routing.scoring is Scoring.CHOSEN_SOFTMAX else np.exp(mine - highest)
    return experts, (powers / over.sum(1, keepdims=True)).astype(np.float32)
