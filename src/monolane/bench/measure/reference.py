"""The reference of the accuracy check: the logits after each token of a short text, computed with NumPy.

It uses the named weights only, and nothing of the program, the plan, the tape or a kernel. Matrices are widened to fp32
in parts, so that a model need not fit in memory in fp32. Two computations run side by side in the same arrays: one in
fp32, and one that is rounded to bf16 after every operation, which is how models are usually run.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure import blas
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights, from_bf16, to_bf16
from monolane.target.cpu.machine import processors

Floats = NDArray[np.float32]
EXACT, ROUNDED = 0, 1  # indices of the first axis of every array of activations: fp32, and rounded to bf16
PART_ELEMENTS = 1 << 19  # of a matrix, widened to fp32 at a time by each thread: 2 MiB, which stay in the CPU's cache


@dataclass(frozen=True)
class Readings:
    """Logits after each token: [tokens, vocabulary]."""

    exact: Floats
    rounded: Floats


def read(config: ModelConfig, weights: Weights, tokens: Sequence[int]) -> Readings:
    """The logits of both computations for a text, which begins at position 0."""
    with blas.one_thread(), ThreadPoolExecutor(len(processors()), "reference") as pool:
        return _Reader(config, weights, pool).read(tokens)


class _Reader:
    def __init__(self, config: ModelConfig, weights: Weights, pool: ThreadPoolExecutor) -> None:
        self._config = config
        self._weights = weights
        self._pool = pool

    def read(self, tokens: Sequence[int]) -> Readings:
        config = self._config
        rows = np.concatenate([from_bf16(self._weights.rows("embed", token, token + 1)) for token in tokens])
        x = np.stack([rows, rows])
        for layer in range(config.layers):
            place = f"layers.{layer}."
            x = rounded(x + self._attended(place, config.windows[layer], self._normed(place + "attn_norm", x)))
            x = rounded(x + self._fed(place, self._normed(place + "ffn_norm", x)))
        logits = self._projected("embed" if config.tied else "head", self._normed("final_norm", x))
        return Readings(logits[EXACT], logits[ROUNDED])

    def _projected(self, name: str, x: Floats, bias: bool = False) -> Floats:
        rows, cols = self._weights.shape(name)
        both = x.reshape(-1, cols)  # all tokens of both computations, so that the weights are read once
        out = np.empty((len(both), rows), np.float32)
        step = max(1, PART_ELEMENTS // cols)

        def multiply_part(start: int) -> None:
            stop = min(start + step, rows)
            out[:, start:stop] = both @ from_bf16(self._weights.rows(name, start, stop)).T

        list(self._pool.map(multiply_part, range(0, rows, step)))
        if bias:
            out += self._weights.vector(f"{name}.bias")
        return rounded(out.reshape(2, -1, rows))

    def _normed(self, name: str, x: Floats) -> Floats:
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + np.float32(self._config.norm_eps))
        return rounded((rounded((x * scale).astype(np.float32)) * self._weights.vector(name)).astype(np.float32))

    def _attended(self, place: str, window: int | None, x: Floats) -> Floats:
        config, count = self._config, x.shape[1]
        q, k, v = (
            self._projected(place + name, x, config.qkv_bias).reshape(2, count, -1, config.head_dim) for name in "qkv"
        )
        if config.qk_norm:
            q, k = self._normed(place + "q_norm", q), self._normed(place + "k_norm", k)
        group = config.heads // config.kv_heads
        k, v = np.repeat(self._with_rope(k), group, 2), np.repeat(v, group, 2)
        scores = np.einsum("rqhd,rkhd->rhqk", self._with_rope(q), k) / np.float32(np.sqrt(config.head_dim))
        distance = np.arange(count)[:, None] - np.arange(count)[None]  # from query back to key
        scores[..., (distance < 0) | (distance >= (window or count))] = -np.inf
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("rhqk,rkhd->rqhd", exps / exps.sum(-1, keepdims=True), v)
        return self._projected(place + "o", rounded(mixed.reshape(2, count, -1)), config.o_bias)

    def _with_rope(self, x: Floats) -> Floats:
        """Rotary embedding over the two halves of a head."""
        angles = np.outer(np.arange(x.shape[1]), self._config.rope.inverse_frequencies(self._config.head_dim))[:, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        low, high = np.split(x, 2, -1)
        return rounded(np.concatenate([low * cos - high * sin, high * cos + low * sin], -1))

    def _fed(self, place: str, x: Floats) -> Floats:
        bias = self._config.mlp_bias
        gate, up = self._projected(place + "gate", x, bias), self._projected(place + "up", x, bias)
        return self._projected(place + "down", rounded(rounded(gate / (1 + np.exp(-gate))) * up), bias)


def rounded(x: Floats) -> Floats:
    """Round the second computation to bf16, in place; the first one stays in fp32."""
    x[ROUNDED] = from_bf16(to_bf16(x[ROUNDED]))
    return x
