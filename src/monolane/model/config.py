"""The description of a decoder-only transformer, independent of its file format and of the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the two halves of a head.

    The frequency of each pair is divided by its number in ``factors`` (Llama 3 scaling, YaRN, linear scaling, the
    ``rope_freqs`` of a GGUF file); None leaves the frequencies unscaled. YaRN also multiplies rotated queries and keys
    with ``attention_factor``.
    """

    theta: float
    factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0

    def inverse_frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Angle per position of each of the ``head_dim // 2`` pairs, in radians."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        frequencies: NDArray[np.float64] = self.theta**-exponents
        return frequencies if self.factors is None else frequencies / np.asarray(self.factors)


HeadKind = Literal["replicate", "vocab_parallel", "lane"]


@dataclass(frozen=True)
class LaneConfig:
    """The lanes of a Laneformer: a transformer in which every lane has a residual stream of its own.

    From layer ``delay`` on, a lane adds its own output at once and those of the others ``delay`` layers late. Before,
    it adds all outputs at once (``early_sums``), or its own times the square root of the number of lanes. A module
    whose outputs are not exchanged at all adds its own times that factor in every layer.
    """

    count: int
    delay: int  # layers
    exchanges_attention: bool = True
    exchanges_mlp: bool = True
    early_sums: bool = False
    early_sends: bool = True  # the outputs of the first ``delay`` layers are also added ``delay`` layers late
    head: HeadKind = "replicate"  # from the mean of the normed streams, from the lane's own, or from all of them
    sums_before_norm: bool = False  # of a replicated head: the sum of the streams is normed, not each of them
    shares_norms: bool = True  # otherwise every lane has norm weights of its own


@dataclass(frozen=True)
class Gate:
    """The gated activation of a feed-forward layer: (up + ``shift``) * gate * sigmoid(``slope`` * gate). Where there is
    a ``limit``, gate is at most that, and up at most that in magnitude."""

    slope: float
    shift: float
    limit: float | None


SWIGLU = Gate(slope=1.0, shift=0.0, limit=None)


@dataclass(frozen=True)
class Experts:
    """The feed-forward layers that are mixtures: a router chooses ``chosen`` of ``count`` experts for every token.

    A chosen expert's output is multiplied with its weight: the softmax of the router's logits, over the experts that
    are chosen where ``normalised``, else over all. A shared expert, where ``shared_ffn`` is not 0, is chosen for every
    token, and its weight is the sigmoid of a logit of its own.
    """

    count: int
    chosen: int
    ffn: int
    layers: tuple[bool, ...]  # which layers have experts; the others are dense
    normalised: bool
    shared_ffn: int = 0
    biased: bool = False  # the router and all matrices of the experts have biases
    gate: Gate = SWIGLU


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
    lanes: LaneConfig | None = None  # of a Laneformer
    experts: Experts | None = None
    sinks: bool = False  # every head has one more logit in its softmax, which attends to nothing

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and self.experts.layers[layer]
