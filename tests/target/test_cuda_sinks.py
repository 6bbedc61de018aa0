"""Attention sinks in the CUDA kernel's own sources, in the emulation, against the reference: a sink is in the softmax
of every row and head once, in decode passes and prefill passes, however the pages that a row sees are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import EmulatedTarget
from look_back import LookBackWeights, look_back_config

from monolane.bench.measure import reference
from monolane.target.cuda import opening
from oracle import Verdict, near_enough
from thorough import seldom

TOKENS = 100
# Lengths that end in a decode pass of 1, 2 and 3 splits, which the next stage merges, and of more; around the window.
DECODED = (1, 17, 40, 41, 65, 100)
WINDOW = 40
FEW = 4  # splits: with more, those of four pages are held in registers


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "windows", "splits"),
    [
        (6, 2, 16, (None, WINDOW), 4),
        (6, 1, 128, (None, WINDOW), 8),  # all warps together hold a split in registers
        seldom(20, 1, 32, (None,), 4),  # the kernel goes through a split twice
        seldom(24, 2, 64, (WINDOW, None), 4),  # queries are the rows of an MMA, not its columns
        seldom(4, 2, 128, (WINDOW, None, WINDOW), 4),
    ],
)
def test_logits_are_those_of_the_reference(
    heads: int,
    kv_heads: int,
    head_dim: int,
    windows: tuple[int | None, ...],
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "SPLIT_PAGES", 4 if splits > FEW else 1)
    # Where o has a bias, as in gpt-oss, the sinks of a layer lie between other constants.
    config = replace(look_back_config(heads, kv_heads, head_dim, windows, TOKENS, sinks=True), o_bias=True)
    distances = tuple(70 * head // heads for head in range(heads))
    weights = LookBackWeights(config, (distances,) * len(windows))
    tokens = np.random.default_rng(0).integers(0, config.vocab, TOKENS).tolist()
    expected = reference.read(config, weights, tokens)
    target = EmulatedTarget(config, weights, splits * kv_heads, context=TOKENS)
    near_enough(Verdict(expected.exact, expected.rounded), target.logits(tokens))
    last = [length - 1 for length in DECODED]
    decoded = np.concatenate([target.logits(tokens[: at + 1], at) for at in last])
    near_enough(Verdict(expected.exact[last], expected.rounded[last]), decoded)
