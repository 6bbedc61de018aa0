"""The kinds of attention of published models, each with its weights, its cache and its stages."""

from __future__ import annotations

from dataclasses import dataclass

from monolane.planner.parts import CACHE_ELEMENT_BYTES, Cache, Part, Weights, matrix, small

STATE_ELEMENT_BYTES = 4  # a recurrent state is kept in fp32, so that rounding errors do not accumulate


@dataclass(frozen=True)
class GroupedAttention:
    """Grouped-query attention: Llama, Qwen, gpt-oss. ``gated`` doubles the rows of q."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    gated: bool = False

    stages = 3  # qkv, attend, o

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        q_rows = q * (2 if self.gated else 1)
        vectors = (q_rows + 2 * kv) * self.qkv_bias + hidden * self.o_bias
        vectors += 2 * self.head_dim * self.qk_norm + self.heads * self.sinks
        return (
            matrix(Part.ATTENTION, hidden * (q_rows + q), self.heads),
            matrix(Part.ATTENTION, hidden * 2 * kv, self.kv_heads),
            small(vectors),
        )

    def cache(self, context: int) -> Cache:
        positions = context if self.window is None else min(context, self.window)
        size = 2 * self.kv_heads * self.head_dim * positions * CACHE_ELEMENT_BYTES
        return Cache(size, size, self.kv_heads)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA), with one latent vector per position for all heads: DeepSeek-V3, Kimi-K2.

    ``q_rank`` is None where queries are not made from a latent vector.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    stages = 6  # down-projections, q up, absorb the key projection into q, attend, value projection, o

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        q = self.heads * (self.nope_dim + self.rope_dim)
        down = hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim) + self.heads * self.value_dim * hidden
        if self.q_rank is None:
            up += hidden * q
        else:
            down += hidden * self.q_rank
            up += self.q_rank * q
        return (
            matrix(Part.ATTENTION, down, 1),
            matrix(Part.ATTENTION, up, self.heads),
            small(self.kv_rank + (self.q_rank or 0)),
        )

    def cache(self, context: int) -> Cache:
        size = (self.kv_rank + self.rope_dim) * context * CACHE_ELEMENT_BYTES
        return Cache(size, size, 1)


@dataclass(frozen=True)
class LinearAttention:
    """Gated delta net, with a state of fixed size that every token reads and writes, instead of a cache: Qwen3-Next."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    stages = 3  # inputs, state, out

    @property
    def _convolved(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        values = self.value_heads * self.value_dim
        inputs = self._convolved + values + 2 * self.value_heads
        vectors = self._convolved * self.kernel + 2 * self.value_heads + self.value_dim
        return matrix(Part.ATTENTION, hidden * (inputs + values), self.key_heads), small(vectors)

    def cache(self, context: int) -> Cache:
        state = self.value_heads * self.key_dim * self.value_dim * STATE_ELEMENT_BYTES
        state += self._convolved * (self.kernel - 1) * CACHE_ELEMENT_BYTES
        return Cache(state, 2 * state, self.key_heads)


@dataclass(frozen=True)
class CompressedAttention:
    """One KV head, with positions older than the window compressed ``rate`` to 1: DeepSeek-V4.

    With an indexer (``top_k``), a token reads the indexer's short keys of all compressed positions, and of these
    positions only the best ``top_k``. ``rate`` is None where nothing older than the window is kept.
    """

    heads: int
    head_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    rate: int | None = None
    top_k: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    @property
    def stages(self) -> int:
        return 6 if self.top_k else 5  # down, q up, (indexer,) attend, o down, o up

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        q = self.heads * self.head_dim
        down = hidden * (self.q_rank + self.head_dim)
        vectors = self.q_rank + self.head_dim + self.heads
        if self.rate is not None:
            overlap = 2 if self.top_k else 1  # with an indexer, neighbouring compressed spans overlap
            down += hidden * 2 * overlap * self.head_dim
            vectors += self.rate * overlap * self.head_dim + self.head_dim
        indexed = 0
        if self.rate is not None and self.top_k:
            down += hidden * (2 * 2 * self.index_dim + self.index_heads)
            indexed = self.q_rank * self.index_heads * self.index_dim
            vectors += self.rate * 2 * self.index_dim + self.index_dim
        up = self.q_rank * q + q * self.o_rank + self.o_groups * self.o_rank * hidden
        return (
            matrix(Part.ATTENTION, down, 1),
            matrix(Part.ATTENTION, up, self.o_groups),
            *([matrix(Part.ATTENTION, indexed, self.index_heads)] if indexed else []),
            small(vectors),
        )

    def cache(self, context: int) -> Cache:
        window = min(context, self.window) * self.head_dim
        compressed = context // self.rate if self.rate else 0
        index_keys = compressed * self.index_dim if self.top_k else 0
        read = min(compressed, self.top_k) if self.top_k else compressed
        held, moved = (window + index_keys + count * self.head_dim for count in (compressed, read))
        return Cache(held * CACHE_ELEMENT_BYTES, moved * CACHE_ELEMENT_BYTES, 1)
