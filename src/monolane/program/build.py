"""Builds the program of a model from its config: five stages per layer, whatever the family."""

from __future__ import annotations

import math

from monolane.model.config import ModelConfig
from monolane.program.stage import (
    Arrangement,
    Attend,
    AttentionShape,
    Buffer,
    CacheFormat,
    Embed,
    Matrix,
    Merge,
    Norm,
    Output,
    Plain,
    Program,
    Project,
    Sample,
    Splitting,
    Stage,
    Vector,
)

FIXED_SPLITS = Splitting(128)  # tokens: few enough to divide short contexts among workers, enough to merge cheaply


def build_program(
    config: ModelConfig, cache_format: CacheFormat = "bf16", splitting: Splitting = FIXED_SPLITS
) -> Program:
    """The stages of one pass of a model. ``splitting``: how the target divides a context into splits."""
    table = _matrix("embed", [("embed", config.vocab)], config.hidden)
    head = _matrix("head", [("embed" if config.tied else "head", config.vocab)], config.hidden)
    stages: list[Stage] = [Embed("embed", head.name if config.tied else table.name, writes="stream_a")]
    for layer in range(config.layers):
        stages += _layer(config, layer)
    stages.append(
        Project(
            "head",
            None,
            head,
            input=Norm(Vector("final_norm", (("final_norm", config.hidden),)), config.norm_eps),
            output=Output.LOGITS,
            reads="stream_a",
            writes="logits",
        )
    )
    stages.append(Sample("sample", reads="logits"))
    attention = AttentionShape(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        splitting=splitting,
        scale=1 / math.sqrt(config.head_dim),
        frequencies=tuple(float(f) for f in config.rope.inverse_frequencies(config.head_dim)),
        cache_format=cache_format,
    )
    buffers = (
        # The residual stream alternates between two buffers: neither is rewritten while a slower worker reads it.
        Buffer("stream_a", config.hidden),
        Buffer("stream_b", config.hidden),
        Buffer("qkv", config.q_size + 2 * config.kv_size),
        Buffer("partials", config.heads * attention.partial_size, per_split=True),
        Buffer("gated", config.ffn),
        Buffer("logits", config.vocab),
    )
    return Program(
        stages=tuple(stages),
        buffers=buffers,
        attention=attention,
        table=None if config.tied else table,
        hidden=config.hidden,
        vocab=config.vocab,
        layers=config.layers,
        context=config.context,
    )


def _layer(config: ModelConfig, layer: int) -> list[Stage]:
    prefix = f"layers.{layer}."
    q, k, v = (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size))
    gate, up = (("gate", config.ffn), ("up", config.ffn))

    def matrix(
        name: str, parts: list[tuple[str, int]], cols: int, arrangement: Arrangement = Arrangement.STACK
    ) -> Matrix:
        return _matrix(prefix + name, [(prefix + part, rows) for part, rows in parts], cols, arrangement)

    def bias(matrix: Matrix, present: bool) -> Vector | None:
        if not present:
            return None
        parts = tuple((f"{name}.bias", rows) for name, rows in matrix.parts)
        return Vector(f"{matrix.name}.bias", parts, matrix.arrangement)

    def norm(name: str, size: int) -> Norm:
        return Norm(Vector(prefix + name, ((prefix + name, size),)), config.norm_eps)

    qkv = matrix("qkv", [q, k, v], config.hidden)
    o = matrix("o", [("o", config.hidden)], config.q_size)
    gate_up = matrix("gate_up", [gate, up], config.hidden, Arrangement.INTERLEAVE)
    down = matrix("down", [("down", config.hidden)], config.ffn)
    return [
        Project(
            "qkv",
            layer,
            qkv,
            norm("attn_norm", config.hidden),
            Output.STORE,
            reads="stream_a",
            writes="qkv",
            bias=bias(qkv, config.qkv_bias),
        ),
        Attend(
            "attend",
            layer,
            window=config.windows[layer],
            q_norm=norm("q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=norm("k_norm", config.head_dim) if config.qk_norm else None,
            reads="qkv",
            writes="partials",
        ),
        Project(
            "o",
            layer,
            o,
            Merge(config.windows[layer]),
            Output.RESIDUAL,
            reads="partials",
            writes="stream_b",
            residual="stream_a",
            bias=bias(o, config.o_bias),
        ),
        Project(
            "gate_up",
            layer,
            gate_up,
            norm("ffn_norm", config.hidden),
            Output.GATE,
            reads="stream_b",
            writes="gated",
            bias=bias(gate_up, config.mlp_bias),
        ),
        Project(
            "down",
            layer,
            down,
            Plain(),
            Output.RESIDUAL,
            reads="gated",
            writes="stream_a",
            residual="stream_b",
            bias=bias(down, config.mlp_bias),
        ),
    ]


def _matrix(name: str, parts: list[tuple[str, int]], cols: int, arrangement: Arrangement = Arrangement.STACK) -> Matrix:
    return Matrix(name, tuple(parts), cols, arrangement)
