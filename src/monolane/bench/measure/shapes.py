"""Models given by their shape, with made-up weights: speed does not depend on the values of the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from monolane.bench.measure.routing import EVEN, SKEWED, skewed_scales
from monolane.errors import UsageError
from monolane.model.config import Experts, LaneConfig, ModelConfig, Rope
from monolane.model.families.gpt_oss import alternating, gate_of
from monolane.model.families.rope import yarn_rope
from monolane.model.weights import Bf16Bits, Unquantised, expected_shapes, from_bf16, to_bf16

_LLAMA3, _QWEN = Rope(500000.0), Rope(1e6)


def _shape(
    family: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    context: int,
    rope: Rope,
    tied: bool = True,
) -> ModelConfig:
    return ModelConfig(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        context=context,
        norm_eps=1e-5,
        rope=rope,
        windows=(None,) * layers,
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tied=tied,
    )


def _gpt_oss(layers: int, experts: int) -> ModelConfig:
    """Both published sizes: 4 experts of each layer, a window in every other layer."""
    rope = yarn_rope(150_000.0, 32.0, head_dim=64, original_context=4096, truncate=False)
    return replace(
        _shape("gpt_oss", 2880, layers, 64, 8, 64, 2880, 201088, 131072, rope, tied=False),
        windows=alternating(layers, 128),
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        experts=Experts(experts, 4, 2880, (True,) * layers, normalised=True, biased=True, gate=gate_of()),
    )


SHAPES = {
    "llama-3.2-1b": _shape("llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, _LLAMA3),
    "llama-3.1-8b": _shape("llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, _LLAMA3),
    "qwen2.5-coder-1.5b": _shape("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, 32768, _QWEN),
    "qwen3-1.7b": _shape("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 40960, _QWEN),
    "smollm2-135m": _shape("llama", 576, 30, 9, 3, 64, 1536, 49152, 8192, Rope(1e5)),
    "llama-3.2-3b": _shape("llama", 3072, 28, 24, 8, 128, 8192, 128256, 131072, _LLAMA3),
    "llama-3.1-70b": _shape("llama", 8192, 80, 64, 8, 128, 28672, 128256, 131072, _LLAMA3, tied=False),
    "mistral-7b": _shape("mistral", 4096, 32, 32, 8, 128, 14336, 32768, 32768, Rope(1e6), tied=False),
    "qwen2.5-0.5b": _shape("qwen2", 896, 24, 14, 2, 64, 4864, 151936, 32768, _QWEN),
    "qwen2.5-7b": _shape("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, 32768, _QWEN, tied=False),
    "qwen3-0.6b": _shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, _QWEN),
    "qwen3-4b": _shape("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 40960, _QWEN),
    "qwen3-14b": _shape("qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 40960, _QWEN, tied=False),
    "qwen3-32b": _shape("qwen3", 5120, 64, 64, 8, 128, 25600, 151936, 40960, _QWEN, tied=False),
    "qwen3-30b-a3b": replace(
        _shape("qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, 40960, _QWEN, tied=False),
        experts=Experts(128, 8, 768, (True,) * 48, normalised=True),
    ),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    # The published Laneformer; RoPE's theta is a guess.
    "laneformer-2b": replace(
        _shape("laneformer_tp", 3072, 15, 32, 16, 96, 12288, 32000, 4096, Rope(1e4), tied=False),
        windows=(512,) * 10 + (None,) * 5,
        lanes=LaneConfig(count=8, delay=2),
    ),
    # Layers, width and bytes of SmolLM2-135M, with heads that 7 lanes can divide: lanes of 18 SMs on an H200.
    "laneformer-135m": replace(
        _shape("laneformer_tp", 576, 30, 7, 7, 64, 1456, 49152, 8192, Rope(1e5)),
        lanes=LaneConfig(count=7, delay=2),
    ),
}


def named(shape: str) -> ModelConfig:
    """One of the shapes, or an error that lists them. ``qwen3-30b-a3b:4``: with its first 4 layers alone."""
    name, _, layers = shape.partition(":")
    if name not in SHAPES:
        raise UsageError(f"There is no shape {name!r}.", f"Choose one of: {', '.join(SHAPES)}.")
    return _cut(name, layers) if ":" in shape else SHAPES[name]


def _cut(name: str, layers: str) -> ModelConfig:
    whole = SHAPES[name]
    count = int(layers) if layers.isdecimal() else 0
    if not 1 <= count <= whole.layers:
        raise UsageError(f"{name}:{layers} is not possible.", f"{name} has {whole.layers} layers: choose 1 or more.")
    experts = replace(whole.experts, layers=whole.experts.layers[:count]) if whole.experts else None
    return replace(whole, layers=count, windows=whole.windows[:count], experts=experts)


class MadeUpWeights(Unquantised):
    """Random weights of about the usual magnitude. All are taken from one pool of some 4 million random numbers, which
    is as fast as copying memory."""

    converted = False
    identity = "made up"

    def __init__(self, config: ModelConfig, seed: int = 0, routing: str = EVEN) -> None:
        self._config, self._routing = config, routing
        self._shapes = dict(expected_shapes(config))
        self._pool = np.random.default_rng(seed).standard_normal((1 << 22) + 4099, np.float32)
        # The pool repeated twice, so that rows are a contiguous view of it wherever they begin, without a copy.
        self._bits: dict[float, Bf16Bits] = {}  # by standard deviation
        for std in {self.std(name) for name, shape in self._shapes.items() if len(shape) == 2}:
            self._bits[std] = np.tile(to_bf16(self._pool * np.float32(std)), 2)
        if config.experts is not None:
            self.identity = f"{self.identity}, {routing} routing"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def std(self, name: str) -> float:
        """The standard deviation of a matrix. It keeps the magnitude of activations; only the embedding of a model with
        experts is as large as what all layers add to it. Otherwise the same few experts would be chosen for all tokens,
        because layers with random weights make tokens alike."""
        if name == "embed" and self._config.experts is not None and not self._config.tied:
            return float(np.sqrt(self._config.layers))
        return float(1 / np.sqrt(self._shapes[name][1]))

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        piece = self._from_pool(name, start, stop)
        if self._routing != SKEWED or not name.endswith(".router") or self._config.experts is None:
            return piece
        scales = skewed_scales(self._config.experts, hash_of(name))[start:stop, None]
        return to_bf16(from_bf16(piece) * scales)

    def _from_pool(self, name: str, start: int, stop: int) -> Bf16Bits:
        cols = self._shapes[name][1]
        pool, period = self._bits[self.std(name)], len(self._pool)
        first = (hash_of(name) + start * cols) % period
        wanted = (stop - start) * cols
        piece = pool[first : first + wanted] if wanted <= period else np.resize(pool[first : first + period], wanted)
        return piece.reshape(stop - start, cols)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Numbers that bf16 holds, as files have them."""
        size = self._shapes[name][0]
        noise = self._pool[hash_of(name) % 1024 :][:size] * np.float32(0.1)
        return from_bf16(to_bf16(noise if name.endswith("bias") else 1 + noise))


def hash_of(name: str) -> int:
    """A hash of the name that is the same in every process."""
    return sum((i + 1) * 7919 * ord(letter) for i, letter in enumerate(name))
