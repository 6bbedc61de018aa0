"""A dense decoder in PyTorch for one token at a time, written for torch.compile: fixed shapes and no graph breaks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from monolane.model.config import ModelConfig
from monolane.model.weights import Weights


class Layer(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self, config: ModelConfig, context: int) -> None:
        super().__init__()
        self.sizes = [config.q_size, config.kv_size, config.kv_size]
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.attn_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.qkv = nn.Linear(config.hidden, sum(self.sizes), bias=config.qkv_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.o = nn.Linear(config.q_size, config.hidden, bias=config.o_bias)
        self.ffn_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=config.mlp_bias)
        self.down = nn.Linear(config.ffn, config.hidden, bias=config.mlp_bias)
        cache = (1, config.kv_heads, context, config.head_dim)
        self.register_buffer("keys", torch.zeros(cache))
        self.register_buffer("values", torch.zeros(cache))

    def forward(self, x: Tensor, position: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attn_norm(x)).split(self.sizes, -1)
        q = rotate(self.q_norm(q.view(1, self.heads, 1, self.head_dim)), rope)
        k = rotate(self.k_norm(k.view(1, self.kv_heads, 1, self.head_dim)), rope)
        keys = self.keys.index_copy_(2, position, k)
        values = self.values.index_copy_(2, position, v.view(1, self.kv_heads, 1, self.head_dim))
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + self.o(mixed.reshape(1, 1, -1))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """``forward`` takes a token [1, 1] and its position [1], and returns the likeliest next token [1, 1]."""

    cosines: Tensor
    sines: Tensor
    positions: Tensor

    def __init__(self, config: ModelConfig, context: int) -> None:
        super().__init__()
        self.windows = list(dict.fromkeys(config.windows))
        self.window_of = [self.windows.index(window) for window in config.windows]
        self.embed = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, context) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        frequencies = torch.tensor(config.rope.inverse_frequencies(config.head_dim), dtype=torch.float32)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies).repeat(1, 2)
        dtype = torch.get_default_dtype()
        factor = config.rope.attention_factor
        self.register_buffer("cosines", (factor * angles.cos()).to(dtype))
        self.register_buffer("sines", (factor * angles.sin()).to(dtype))
        self.register_buffer("positions", torch.arange(context))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x, rope, masks = self.begin(token, position)
        for layer, window in zip(self.layers, self.window_of, strict=True):
            x = layer(x, position, rope, masks[window])
        return self.end(x)

    def begin(self, token: Tensor, position: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], list[Tensor]]:
        """The embedding, the RoPE coefficients of the position, and an attention mask for each window size."""
        distance = position - self.positions  # back to each position of the cache
        masks = [
            ((distance >= 0) & (distance < (window or len(distance)))).view(1, 1, 1, -1) for window in self.windows
        ]
        return self.embed(token), (self.cosines[position], self.sines[position]), masks

    def end(self, x: Tensor) -> Tensor:
        return self.head(self.final_norm(x)).argmax(-1)  # type: ignore[no-any-return]

    def compile_parts(self, mode: str) -> None:
        """Compile the beginning, a layer and the end. All layers share one compiled function, so that compile time does
        not grow with their number."""
        for name in ("begin", "end"):
            setattr(self, name, torch.compile(getattr(self, name), mode=mode, fullgraph=True, dynamic=False))
        for layer in self.layers:
            layer.compile(mode=mode, fullgraph=True, dynamic=False)


def fill(decoder: Decoder, config: ModelConfig, weights: Weights) -> None:
    """Copy our weights into the decoder, where q, k and v are one matrix, and so are gate and up."""
    parts = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up"), "o": ("o",), "down": ("down",)}
    norms = ["attn_norm", "ffn_norm", *(["q_norm", "k_norm"] if config.qk_norm else [])]
    into = dict(decoder.named_parameters())
    _copy(into["embed.weight"], [_matrix(weights, "embed")])
    _copy(into["final_norm.weight"], [_vector(weights, "final_norm")])
    if not config.tied:
        _copy(into["head.weight"], [_matrix(weights, "head")])
    for layer in range(config.layers):
        place = f"layers.{layer}."
        for norm in norms:
            _copy(into[f"{place}{norm}.weight"], [_vector(weights, place + norm)])
        for name, sources in parts.items():
            _copy(into[f"{place}{name}.weight"], [_matrix(weights, place + source) for source in sources])
            if f"{place}{name}.bias" in into:
                _copy(into[f"{place}{name}.bias"], [_vector(weights, f"{place}{source}.bias") for source in sources])


def _copy(parameter: Tensor, pieces: list[Tensor]) -> None:
    start = 0
    with torch.no_grad():
        for piece in pieces:
            parameter[start : start + len(piece)] = piece.to(parameter.device)
            start += len(piece)


def _matrix(weights: Weights, name: str) -> Tensor:
    bits = weights.rows(name, 0, weights.shape(name)[0])
    return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)


def _vector(weights: Weights, name: str) -> Tensor:
    return torch.from_numpy(np.array(weights.vector(name)))


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding over the two halves of a head; ``rope`` are the cosines and the sines."""
    first, second = x.chunk(2, -1)
    return x * rope[0] + torch.cat([-second, first], -1) * rope[1]
