"""The reference of the accuracy check: the logits after each token of a short text, computed with NumPy.

It uses the named weights only, and nothing of the program, the plan, the tape or a kernel. Matrices are widened to fp32
in parts, so that a model need not fit in memory in fp32. Two computations run side by side in the same arrays: one in
fp32, and one that is rounded to bf16 after every operation, which is how models are usually run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure import blas
from monolane.model.config import Experts, LaneConfig, ModelConfig
from monolane.model.weights import Weights, expected_shapes, from_bf16, matrix_values, to_bf16
from monolane.program.shard import LaneWeights, Shard
from monolane.target.cpu.machine import processors

Floats = NDArray[np.float32]
Map = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]  # as the built-in one
EXACT, ROUNDED = 0, 1  # indices of the first axis of every array of activations: fp32, and rounded to bf16
# Of a matrix, widened to fp32 at a time by each thread; with smaller parts 16 of them waited for the interpreter's lock
PART_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Readings:
    """Logits after each token: [tokens, vocabulary]; and which experts fp32 chose in each layer: [tokens, chosen]."""

    exact: Floats
    rounded: Floats
    chosen: tuple[NDArray[np.int64], ...] = ()


def read(config: ModelConfig, weights: Weights, tokens: Sequence[int]) -> Readings:
    """The logits of both computations for a text, which begins at position 0."""
    with blas.one_thread(), ThreadPoolExecutor(len(processors()), "reference") as pool:
        reader = _Reader(config, weights, pool)
        return _read_lanes(config, weights, reader, tokens) if config.lanes else reader.read(tokens)


class _Reader:
    def __init__(self, config: ModelConfig, weights: Weights, pool: ThreadPoolExecutor) -> None:
        self._config = config
        self._weights = weights
        self.pool = pool
        self._shapes = dict(expected_shapes(config))
        self._chosen: list[NDArray[np.int64]] = []

    def read(self, tokens: Sequence[int]) -> Readings:
        x = self.embedded(tokens)
        for layer in range(self._config.layers):
            for module in (self.attended, self.fed):
                x = rounded(x + module(layer, x))
        return self.logits(self.normed("final_norm", x))

    def embedded(self, tokens: Sequence[int]) -> Floats:
        rows = np.concatenate([matrix_values(self._weights, "embed", token, token + 1) for token in tokens])
        return np.stack([rows, rows])

    def attended(self, layer: int, x: Floats) -> Floats:
        place = f"layers.{layer}."
        return self._attended(place, self._config.windows[layer], self.normed(place + "attn_norm", x))

    def fed(self, layer: int, x: Floats) -> Floats:
        place = f"layers.{layer}."
        return self._fed(place, self.normed(place + "ffn_norm", x))

    def logits(self, x: Floats) -> Readings:
        made = self._projected("embed" if self._config.tied else "head", x)
        return Readings(made[EXACT], made[ROUNDED], tuple(self._chosen))

    def _projected(self, name: str, x: Floats, bias: bool = False) -> Floats:
        rows, cols = self._shapes[name]
        # All tokens of both computations, so that the weights are read once.
        made = self._multiplied(name, x.reshape(-1, cols), 0, rows, bias, self.pool.map)
        return rounded(made.reshape(2, -1, rows))

    def _multiplied(self, name: str, x: Floats, first: int, rows: int, bias: bool, for_each: Map) -> Floats:
        """Tokens with some rows of a matrix. ``for_each`` goes through its parts."""
        out = np.empty((len(x), rows), np.float32)
        step = max(1, PART_ELEMENTS // x.shape[1])

        def multiply_part(start: int) -> None:
            stop = min(start + step, rows)
            out[:, start:stop] = x @ matrix_values(self._weights, name, first + start, first + stop).T

        list(for_each(multiply_part, range(0, rows, step)))
        if bias:
            out += self._weights.vector(f"{name}.bias")[first : first + rows]
        return out

    def normed(self, name: str, x: Floats) -> Floats:
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + np.float32(self._config.norm_eps))
        return rounded((rounded((x * scale).astype(np.float32)) * self._weights.vector(name)).astype(np.float32))

    def _attended(self, place: str, window: int | None, x: Floats) -> Floats:
        config, count = self._config, x.shape[1]
        q, k, v = (
            self._projected(place + name, x, config.qkv_bias).reshape(2, count, -1, config.head_dim) for name in "qkv"
        )
        if config.qk_norm:
            q, k = self.normed(place + "q_norm", q), self.normed(place + "k_norm", k)
        group = config.heads // config.kv_heads
        k, v = np.repeat(self._with_rope(k), group, 2), np.repeat(v, group, 2)
        scores = np.einsum("rqhd,rkhd->rhqk", self._with_rope(q), k) / np.float32(np.sqrt(config.head_dim))
        distance = np.arange(count)[:, None] - np.arange(count)[None]  # from query back to key
        scores[..., (distance < 0) | (distance >= (window or count))] = -np.inf
        sinks = self._weights.vector(place + "sinks") if config.sinks else np.full(config.heads, -np.inf, np.float32)
        highest = np.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
        exps = np.exp(scores - highest)
        total = exps.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - highest)
        mixed = np.einsum("rhqk,rkhd->rqhd", exps / total, v)
        return self._projected(place + "o", rounded(mixed.reshape(2, count, -1)), config.o_bias)

    def _with_rope(self, x: Floats) -> Floats:
        """Rotary embedding over the two halves of a head."""
        angles = np.outer(np.arange(x.shape[1]), self._config.rope.inverse_frequencies(self._config.head_dim))[:, None]
        factor = self._config.rope.attention_factor
        cos, sin = (factor * np.cos(angles)).astype(np.float32), (factor * np.sin(angles)).astype(np.float32)
        low, high = np.split(x, 2, -1)
        return rounded(np.concatenate([low * cos - high * sin, high * cos + low * sin], -1))

    def _fed(self, place: str, x: Floats) -> Floats:
        experts = self._config.experts
        if experts is not None and f"{place}router" in self._shapes:
            made = self._of_experts(place, experts, x)
            if not experts.shared_ffn:
                return made
            weight = self._projected(place + "shared_router", x)
            gate, up = self._projected(place + "shared.gate", x), self._projected(place + "shared.up", x)
            shared = self._projected(place + "shared.down", rounded(rounded(gate / (1 + np.exp(-gate))) * up))
            weight = rounded((1 / (1 + np.exp(-weight))).astype(np.float32))
            return rounded((made + rounded((weight * shared).astype(np.float32))).astype(np.float32))
        bias = self._config.mlp_bias
        gate, up = self._projected(place + "gate", x, bias), self._projected(place + "up", x, bias)
        return self._projected(place + "down", rounded(rounded(gate / (1 + np.exp(-gate))) * up), bias)

    def _of_experts(self, place: str, experts: Experts, x: Floats) -> Floats:
        """Both computations choose for themselves."""
        logits = self._projected(place + "router", x, experts.biased)
        chosen = np.argsort(-logits, -1, kind="stable")[..., : experts.chosen]
        self._chosen.append(chosen[EXACT])
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        weights = np.take_along_axis(powers, chosen, -1)
        weights = rounded(weights / (weights if experts.normalised else powers).sum(-1, keepdims=True))

        def weighted(expert: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
            kind, token, place_of = np.nonzero(chosen == expert)
            made = self._of_expert(place, experts, expert, x[kind, token], kind == ROUNDED)
            return kind, token, _rounded_rows(made * weights[kind, token, place_of, None], kind == ROUNDED)

        out = np.zeros_like(x)
        for kind, token, made in self.pool.map(weighted, np.unique(chosen).tolist()):  # one after the other
            out[kind, token] += made
            out = rounded(out)
        return out

    def _of_expert(self, place: str, experts: Experts, expert: int, x: Floats, is_rounded: NDArray[np.bool_]) -> Floats:
        """Rows of either computation. A thread of the pool computes an expert, and must not wait for others."""

        def projected(part: str, x: Floats, rows: int) -> Floats:
            made = self._multiplied(f"{place}experts.{part}", x, expert * rows, rows, experts.biased, map)
            return _rounded_rows(made, is_rounded)

        gate, up = projected("gate", x, experts.ffn), projected("up", x, experts.ffn)
        limit = np.float32(np.inf if experts.gate.limit is None else experts.gate.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + np.float32(experts.gate.shift)
        activated = _rounded_rows(gate / (1 + np.exp(np.float32(-experts.gate.slope) * gate)), is_rounded)
        return projected("down", _rounded_rows(activated * up, is_rounded), self._config.hidden)


def _read_lanes(config: ModelConfig, weights: Weights, whole: _Reader, tokens: Sequence[int]) -> Readings:
    """A Laneformer: every lane is a smaller model with a residual stream of its own, and adds what others have made."""
    lanes = config.lanes
    assert lanes is not None
    shard = Shard(config, lanes.count)
    share = replace(config, heads=shard.heads, kv_heads=shard.kv_heads, ffn=shard.ffn, lanes=None)
    readers = [_Reader(share, LaneWeights(weights, shard, lane), whole.pool) for lane in range(lanes.count)]
    streams = [whole.embedded(tokens) for _ in readers]
    made: list[tuple[list[Floats], list[Floats]]] = []  # the outputs of all lanes: of attention and of the FFN
    for layer in range(config.layers):
        attended = [reader.attended(layer, x) for reader, x in zip(readers, streams, strict=True)]
        made.append((attended, []))
        streams = [_added(lanes, made, layer, 0, lanes.exchanges_attention, n, x) for n, x in enumerate(streams)]
        made[-1][1].extend(reader.fed(layer, x) for reader, x in zip(readers, streams, strict=True))
        streams = [_added(lanes, made, layer, 1, lanes.exchanges_mlp, n, x) for n, x in enumerate(streams)]
    if lanes.sums_before_norm:
        return whole.logits(whole.normed("final_norm", rounded(sum(streams[1:], streams[0]))))
    normed = [reader.normed("final_norm", x) for reader, x in zip(readers, streams, strict=True)]
    if lanes.head == "lane":
        return whole.logits(np.concatenate(normed, -1))
    if lanes.head == "replicate":
        return whole.logits(rounded(sum(normed[1:], normed[0]) / np.float32(lanes.count)))
    shares = [whole.logits(x) for x in normed]  # of each lane's own tokens, those of the others are not used
    tokens_each = config.vocab // lanes.count
    places = [slice(lane * tokens_each, (lane + 1) * tokens_each) for lane in range(lanes.count)]
    return Readings(
        np.concatenate([share.exact[:, place] for share, place in zip(shares, places, strict=True)], 1),
        np.concatenate([share.rounded[:, place] for share, place in zip(shares, places, strict=True)], 1),
    )


def _added(
    lanes: LaneConfig,
    made: list[tuple[list[Floats], list[Floats]]],
    layer: int,
    module: int,
    exchanges: bool,
    lane: int,
    x: Floats,
) -> Floats:
    """The residual stream of a lane after a module."""
    outputs = made[layer][module]
    if exchanges and (lanes.delay == 0 or (layer < lanes.delay and lanes.early_sums)):
        return rounded(x + sum(outputs[1:], outputs[0]))
    if not exchanges or layer < lanes.delay:
        return rounded(x + outputs[lane] * np.float32(np.sqrt(lanes.count)))
    if layer < 2 * lanes.delay and not lanes.early_sends:
        return rounded(x + outputs[lane])
    late = made[layer - lanes.delay][module]
    return rounded(x + sum((late[other] for other in range(lanes.count) if other != lane), outputs[lane]))


def _rounded_rows(x: Floats, is_rounded: NDArray[np.bool_]) -> Floats:
    x[is_rounded] = from_bf16(to_bf16(x[is_rounded]))
    return x


def rounded(x: Floats) -> Floats:
    """Round the second computation to bf16, in place; the first one stays in fp32."""
    x[ROUNDED] = from_bf16(to_bf16(x[ROUNDED]))
    return x
