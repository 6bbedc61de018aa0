"""The description of a decoder-only transformer, independent of its file format and of the hardware."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the two halves of a head.

    The frequency of each pair is divided by its number in ``factors`` (Llama 3 scaling, linear scaling, the
    ``rope_freqs`` of a GGUF file); None leaves the frequencies unscaled.
    """

    theta: float
    factors: tuple[float, ...] | None = None

    def inverse_frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Angle per position of each of the ``head_dim // 2`` pairs, in radians."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        frequencies: NDArray[np.float64] = self.theta**-exponents
        return frequencies if self.factors is None else frequencies / np.asarray(self.factors)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. Sizes count elements; ``windows`` has one entry per layer, None for full attention."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim
