"""Builds the program of a model from its config: five stages per layer, whatever the family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from monolane.model.config import ModelConfig
from monolane.model.format import BF16, Format, FormatOf, all_bf16
from monolane.program.shard import Shard
from monolane.program.stage import (
    Arrangement,
    Attend,
    AttentionShape,
    Buffer,
    CacheFormat,
    Combine,
    Embed,
    Exchange,
    Input,
    Joining,
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
    config: ModelConfig,
    cache_format: CacheFormat = "bf16",
    splitting: Splitting = FIXED_SPLITS,
    lanes: int = 1,
    formats: FormatOf = all_bf16,
) -> Program:
    """The stages of one pass of a model, on each of ``lanes`` lanes. ``splitting``: how the target divides a context
    into splits. ``formats``: those of the model's matrices."""
    shard = Shard(config, lanes)
    # With several lanes each has a part of the head and the whole embedding, also where the two are tied.
    is_tied = config.tied and lanes == 1
    table = Matrix("embed", (("embed", config.vocab),), config.hidden, format=formats("embed"))
    width = config.hidden * (lanes if config.lanes and config.lanes.head == "lane" else 1)
    head_name = "embed" if is_tied else "head"
    head = Matrix("head", ((head_name, shard.vocab),), width, format=formats(head_name))
    stages: list[Stage] = [Embed("embed", head.name if is_tied else table.name, writes="stream_a")]
    for layer in (_Layer(shard, number, formats) for number in range(config.layers)):
        stages += [*layer.attention(), *layer.feed_forward()]
    stages += _head(config, head)
    stages.append(Sample("sample", reads="logits"))
    attention = AttentionShape(
        heads=shard.heads,
        kv_heads=shard.kv_heads,
        head_dim=config.head_dim,
        splitting=splitting,
        # Queries and keys have this factor of YaRN each; their product has it twice.
        scale=config.rope.attention_factor**2 / math.sqrt(config.head_dim),
        frequencies=tuple(float(f) for f in config.rope.inverse_frequencies(config.head_dim)),
        cache_format=cache_format,
    )
    buffers = (
        # The residual stream alternates between two buffers: neither is rewritten while a slower worker reads it.
        Buffer("stream_a", config.hidden),
        Buffer("stream_b", config.hidden),
        Buffer("qkv", (shard.heads + 2 * shard.kv_heads) * config.head_dim),
        Buffer("partials", shard.heads * attention.partial_size, per_split=True),
        Buffer("gated", shard.ffn),
        *(Buffer(stage.writes, width) for stage in stages if isinstance(stage, Combine)),
        Buffer("logits", config.vocab),
    )
    return Program(
        stages=tuple(stages),
        buffers=buffers,
        attention=attention,
        table=None if is_tied else table,
        hidden=config.hidden,
        vocab=config.vocab,
        layers=config.layers,
        context=config.context,
        lanes=lanes,
    )


def _head(config: ModelConfig, head: Matrix) -> list[Stage]:
    """The stages that make the logits. In a Laneformer, a stage before the head may combine the residual streams."""
    norm = Norm(Vector("final_norm", (("final_norm", config.hidden),)), config.norm_eps)
    before: list[Stage] = []
    source: Input = norm
    reads = "stream_a"
    if config.lanes is not None and config.lanes.head != "vocab_parallel":
        reads = "combined"
        if config.lanes.sums_before_norm:
            before.append(Combine("combine", None, Joining.SUM, reads="stream_a", writes=reads))
        else:
            joining = Joining.CONCAT if config.lanes.head == "lane" else Joining.MEAN
            before.append(Combine("combine", norm, joining, reads="stream_a", writes=reads))
            source = Plain()
    return [*before, Project("head", None, head, source, Output.LOGITS, reads=reads, writes="logits")]


def _exchange(shard: Shard, layer: int, exchanges: bool) -> Exchange | None:
    """What lanes add after a residual projection of a layer; ``exchanges``: whether a Laneformer does at all there."""
    lanes = shard.config.lanes
    if lanes is None:
        return Exchange() if shard.lanes > 1 else None
    if not exchanges:
        return Exchange(math.sqrt(lanes.count), late=None)
    if layer < lanes.delay:
        return Exchange() if lanes.early_sums else Exchange(math.sqrt(lanes.count), late=None)
    has_sent = layer - lanes.delay >= lanes.delay or lanes.early_sends
    return Exchange(late=lanes.delay if has_sent else None)


@dataclass(frozen=True)
class _Layer:
    """Makes the stages of one layer."""

    shard: Shard
    number: int
    formats: FormatOf

    @property
    def config(self) -> ModelConfig:
        return self.shard.config

    @property
    def prefix(self) -> str:
        return f"layers.{self.number}."

    def attention(self) -> Iterator[Stage]:
        config, lanes = self.config, self.config.lanes
        window = config.windows[self.number]
        yield from self._qkv()
        yield Attend(
            "attend",
            self.number,
            window=window,
            q_norm=self._norm("q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=self._norm("k_norm", config.head_dim) if config.qk_norm else None,
            reads="qkv",
            writes="partials",
        )
        o = self._matrix("o", [("o", config.hidden)], self.shard.heads * config.head_dim)
        yield Project(
            "o",
            self.number,
            o,
            Merge(window),
            Output.RESIDUAL,
            reads="partials",
            writes="stream_b",
            residual="stream_a",
            bias=self._bias(o, config.o_bias),
            order=self._order(o, "o"),
            exchange=_exchange(self.shard, self.number, lanes is None or lanes.exchanges_attention),
        )

    def feed_forward(self) -> Iterator[Stage]:
        config, lanes, ffn = self.config, self.config.lanes, self.shard.ffn
        gate_up = self._matrix("gate_up", [("gate", ffn), ("up", ffn)], config.hidden, Arrangement.INTERLEAVE)
        yield Project(
            "gate_up",
            self.number,
            gate_up,
            self._norm("ffn_norm", config.hidden),
            Output.GATE,
            reads="stream_b",
            writes="gated",
            bias=self._bias(gate_up, config.mlp_bias),
            order=self._order(gate_up, "gate"),
        )
        down = self._matrix("down", [("down", config.hidden)], ffn)
        yield Project(
            "down",
            self.number,
            down,
            Plain(),
            Output.RESIDUAL,
            reads="gated",
            writes="stream_a",
            residual="stream_b",
            bias=self._bias(down, config.mlp_bias),
            order=self._order(down, "down"),
            exchange=_exchange(self.shard, self.number, lanes is None or lanes.exchanges_mlp),
        )

    def _qkv(self) -> Iterator[Stage]:
        """One projection where q, k and v have the same format, else one for each run of equal formats. They are
        divided in the same way in all layers, so that all layers have the same stages."""
        config = self.config
        q_size, kv_size = self.shard.heads * config.head_dim, self.shard.kv_heads * config.head_dim
        first_row = 0
        for _, run in groupby([("q", q_size), ("k", kv_size), ("v", kv_size)], lambda part: self._in_layers(part[0])):
            parts = list(run)
            rows = self._matrix("".join(part for part, _ in parts), parts, config.hidden)
            yield Project(
                rows.name.removeprefix(self.prefix),
                self.number,
                rows,
                self._norm("attn_norm", config.hidden),
                Output.STORE,
                reads="stream_a",
                writes="qkv",
                bias=self._bias(rows, config.qkv_bias),
                order=self._order(rows, "q"),
                continues=first_row > 0,
                first_row=first_row,
            )
            first_row += rows.rows

    def _matrix(
        self, name: str, parts: list[tuple[str, int]], cols: int, arrangement: Arrangement = Arrangement.STACK
    ) -> Matrix:
        named = tuple((self.prefix + part, rows) for part, rows in parts)
        format = self._format(*(part for part, _ in parts))
        return Matrix(self.prefix + name, named, cols, arrangement, format)

    def _in_layers(self, *parts: str) -> list[Format]:
        """The format of a matrix made of these parts, in every layer."""
        layers = range(self.config.layers)
        return [common_format([f"layers.{i}.{part}" for part in parts], self.formats) for i in layers]

    def _format(self, *parts: str) -> Format:
        """The same in this layer. All layers have an order of their own, or none: they are alike."""
        everywhere = self._in_layers(*parts)
        here, in_all = everywhere[self.number], all(format.ordered for format in everywhere)
        return BF16 if here.ordered and not in_all else here

    def _order(self, matrix: Matrix, first: str) -> Vector | None:
        """``first``: the part whose order is that of all."""
        name = f"{self.prefix}{first}.order"
        return Vector(name, ((name, matrix.cols),)) if matrix.format.ordered else None

    def _bias(self, matrix: Matrix, present: bool) -> Vector | None:
        if not present:
            return None
        parts = tuple((f"{name}.bias", rows) for name, rows in matrix.parts)
        return Vector(f"{matrix.name}.bias", parts, matrix.arrangement)

    def _norm(self, name: str, size: int) -> Norm:
        return Norm(Vector(self.prefix + name, ((self.prefix + name, size),)), self.config.norm_eps)


def common_format(names: list[str], formats: FormatOf) -> Format:
    """The format of a matrix made of several weights: theirs where they have the same one, else bf16."""
    found = {formats(name) for name in names}
    return found.pop() if len(found) == 1 else BF16
