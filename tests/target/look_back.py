"""Made-up models whose heads each look a fixed distance back, so that attention that misses a position is seen.

With random weights attention is a mean over the whole context: one position more or less changes nothing that stands
out from rounding. Here the biases of q and k decide where a head looks. Rotary embedding turns pair i of a vector by
its position times f_i; a query that is turned back by D * f_i beforehand fits the key of D positions ago best:

    score(distance) = height * mean over i of cos((distance - D) * f_i)

Where the config has sinks, they are as high as these scores, or so far from them that they take all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure.shapes import MadeUpWeights
from monolane.model.config import ModelConfig, Rope
from monolane.model.weights import Bf16Bits, from_bf16, to_bf16
from monolane.target.base import Token

HEIGHT = 60.0  # of a score at its distance; one position beside it, it is about 3 less
SINKS = (HEIGHT, -1e4, HEIGHT - 2, 1e4, HEIGHT + 2, 0.0)  # of the heads, in another order in every layer
THETA = 100.0  # of the rotation: no frequency is too low to tell two neighbouring positions apart
QUIET = 1 / 16  # of q's and k's weights: what a token says hardly moves where a head looks
LOUD = 4.0  # of o's weights: what a head sees is most of what a layer adds
TOP = 20  # tokens whose logprobs are compared
# Of the error of these logprobs, as the root of their mean square. What is rounded to bf16 (inputs of projections,
# queries, keys, values) makes it up to 0.02; a single head that looks at a wrong position makes it 0.3 and more.
LIMIT = 0.06


def error_of(token: Token, exact: NDArray[np.float64]) -> float:
    """How far the logprobs of the likeliest tokens are from those of all tokens as transformers has them in fp32."""
    ids, ours = [i for i, _ in token.top], np.array([logprob for _, logprob in token.top])
    return float(np.sqrt(np.mean(np.square(ours - exact[ids]))))


def look_back_config(
    heads: int, kv_heads: int, head_dim: int, windows: Sequence[int | None], context: int, sinks: bool = False
) -> ModelConfig:
    """Qwen2 is the family with biases on q and k, and with windows."""
    return ModelConfig(
        family="qwen2",
        hidden=heads * head_dim,
        layers=len(windows),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=192,
        vocab=211,
        context=context,
        norm_eps=1e-6,
        rope=Rope(THETA),
        windows=tuple(windows),
        qkv_bias=True,
        tied=True,
        sinks=sinks,
    )


class LookBackWeights(MadeUpWeights):
    """``distances``: for each layer, how far back each of its heads looks, in tokens."""

    identity = "made up to look back"

    def __init__(self, config: ModelConfig, distances: Sequence[Sequence[int]]) -> None:
        assert [len(layer) for layer in distances] == [config.heads] * config.layers
        super().__init__(config)
        self._config, self._distances = config, distances

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        rows, part = super().rows(name, start, stop), name.split(".")[-1]
        factor = {"q": QUIET, "k": QUIET, "o": LOUD}.get(part)
        return rows if factor is None else to_bf16(from_bf16(rows) * np.float32(factor))  # powers of two: exact

    def vector(self, name: str) -> NDArray[np.float32]:
        part = name.split(".")[-2:]
        if part == ["q", "bias"]:
            layer = self._distances[int(name.split(".")[1])]
            return np.concatenate([self._turned(distance) for distance in layer])
        if part == ["k", "bias"]:
            return np.concatenate([self._turned(0)] * self._config.kv_heads)
        if part[-1] == "sinks":
            return np.resize(np.roll(np.array(SINKS, np.float32), int(part[0])), self._config.heads)
        return super().vector(name)

    def _turned(self, distance: int) -> NDArray[np.float32]:
        """A vector turned back by so many positions: first halves of all pairs, then second halves."""
        config = self._config
        angles = distance * config.rope.inverse_frequencies(config.head_dim)
        size = np.sqrt(HEIGHT * np.sqrt(config.head_dim) / (config.head_dim // 2))
        return (size * np.concatenate([np.cos(angles), -np.sin(angles)])).astype(np.float32)
