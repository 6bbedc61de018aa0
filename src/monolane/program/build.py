"""Builds the program of a model from its config: five stages per layer, or six where it has experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from monolane.model.config import SWIGLU, Experts, Gate, ModelConfig
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
    Routing,
    Sample,
    Scoring,
    Splitting,
    Stage,
    Vector,
)

_SPOKEN = {"": "", "experts.": "", "shared.": "shared_"}  # what the name of a feed-forward stage begins with
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
        *_feed_forward_buffers(shard),
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


def _feed_forward_buffers(shard: Shard) -> list[Buffer]:
    experts = shard.config.experts
    found = [] if experts and all(experts.layers) else [Buffer("gated", shard.ffn)]
    if experts is not None:
        found += [Buffer("routed", experts.count + bool(experts.shared_ffn))]
        found += [Buffer("gated_experts", experts.chosen * shard.expert_ffn)]
        found += [Buffer("gated_shared", shard.shared_ffn)] if experts.shared_ffn else []
    return found


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
            Merge(window, self._vector("sinks", self.shard.heads) if config.sinks else None),
            Output.RESIDUAL,
            reads="partials",
            writes="stream_b",
            residual="stream_a",
            bias=self._bias(o, config.o_bias),
            order=self._order(o, "o"),
            exchange=_exchange(self.shard, self.number, lanes is None or lanes.exchanges_attention),
        )

    def feed_forward(self) -> Iterator[Stage]:
        experts = self.config.experts
        if experts is None or not experts.layers[self.number]:
            ffn = self.shard.ffn
            yield self._gate_up("", ffn, "gated", self.config.mlp_bias)
            yield self._down("", ffn, "gated", self.config.mlp_bias)
            return
        yield self._router(experts)
        scoring = Scoring.CHOSEN_SOFTMAX if experts.normalised else Scoring.SOFTMAX
        routing = Routing("routed", 0, experts.count, experts.chosen, scoring)
        always = Routing("routed", experts.count, 1, 1, Scoring.SIGMOID)
        ffn, shared_ffn = self.shard.expert_ffn, self.shard.shared_ffn
        yield self._gate_up("experts.", ffn, "gated_experts", experts.biased, experts.gate, routing)
        if shared_ffn:
            shared = self._gate_up("shared.", shared_ffn, "gated_shared", False, routing=always)
            yield replace(shared, continues=True)
        yield self._down("experts.", ffn, "gated_experts", experts.biased, routing)
        if shared_ffn:
            shared = self._down("shared.", shared_ffn, "gated_shared", False)
            yield replace(shared, residual="stream_a", continues=True)

    def _router(self, experts: Experts) -> Project:
        """The logits of all experts and, where there is a shared one, its own."""
        parts = [("router", experts.count)] + ([("shared_router", 1)] if experts.shared_ffn else [])
        router = self._matrix("router", parts, self.config.hidden)
        norm = self._norm("ffn_norm", self.config.hidden)
        bias = self._bias(router, experts.biased)
        return Project(
            "router",
            self.number,
            router,
            norm,
            Output.STORE,
            reads="stream_b",
            writes="routed",
            bias=bias,
            routes=True,
        )

    def _gate_up(
        self,
        kind: str,
        ffn: int,
        writes: str,
        is_biased: bool,
        gate: Gate = SWIGLU,
        routing: Routing | None = None,
    ) -> Project:
        """``kind``: what the names of the matrices begin with."""
        parts, count = [(f"{kind}gate", ffn), (f"{kind}up", ffn)], routing.count if routing else 1
        gate_up = self._matrix(f"{kind}gate_up", parts, self.config.hidden, Arrangement.INTERLEAVE, count)
        return Project(
            f"{_SPOKEN[kind]}gate_up",
            self.number,
            gate_up,
            self._norm("ffn_norm", self.config.hidden),
            Output.GATE,
            reads="stream_b",
            writes=writes,
            bias=self._bias(gate_up, is_biased),
            order=self._order(gate_up, f"{kind}gate"),
            gate=gate,
            routing=routing,
        )

    def _down(self, kind: str, ffn: int, reads: str, is_biased: bool, routing: Routing | None = None) -> Project:
        lanes, count = self.config.lanes, routing.count if routing else 1
        down = self._matrix(f"{kind}down", [(f"{kind}down", self.config.hidden)], ffn, experts=count)
        return Project(
            f"{_SPOKEN[kind]}down",
            self.number,
            down,
            Plain(),
            Output.RESIDUAL,
            reads=reads,
            writes="stream_a",
            residual="stream_b",
            bias=self._bias(down, is_biased),
            order=self._order(down, f"{kind}down"),
            exchange=_exchange(self.shard, self.number, lanes is None or lanes.exchanges_mlp),
            routing=routing,
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
        self,
        name: str,
        parts: list[tuple[str, int]],
        cols: int,
        arrangement: Arrangement = Arrangement.STACK,
        experts: int = 1,
    ) -> Matrix:
        named = tuple((self.prefix + part, rows) for part, rows in parts)
        format = self._format(*(part for part, _ in parts))
        return Matrix(self.prefix + name, named, cols, arrangement, format, experts)

    def _in_layers(self, *parts: str) -> list[Format]:
        """The format of a matrix made of these parts, in every layer that has them."""
        of_attention, of_dense = parts[0] in ("q", "k", "v", "o"), parts[0] in ("gate", "up", "down")
        layers = [i for i in range(self.config.layers) if of_attention or of_dense != self.config.has_experts(i)]
        return [common_format([f"layers.{i}.{part}" for part in parts], self.formats) for i in layers]

    def _format(self, *parts: str) -> Format:
        """The same in this layer. All layers have an order of their own, or none: they are alike."""
        here = common_format([self.prefix + part for part in parts], self.formats)
        if not here.ordered:
            return here
        return here if all(format.ordered for format in self._in_layers(*parts)) else BF16

    def _order(self, matrix: Matrix, first: str) -> Vector | None:
        """``first``: the part whose order is that of all."""
        name = f"{self.prefix}{first}.order"
        return Vector(name, ((name, matrix.cols),)) if matrix.format.ordered else None

    def _bias(self, matrix: Matrix, present: bool) -> Vector | None:
        if not present:
            return None
        parts = tuple((f"{name}.bias", matrix.experts * rows) for name, rows in matrix.parts)
        return Vector(f"{matrix.name}.bias", parts, matrix.arrangement)

    def _norm(self, name: str, size: int) -> Norm:
        return Norm(self._vector(name, size), self.config.norm_eps)

    def _vector(self, name: str, size: int) -> Vector:
        return Vector(self.prefix + name, ((self.prefix + name, size),))


def common_format(names: list[str], formats: FormatOf) -> Format:
    """The format of a matrix made of several weights: theirs where they have the same one, else bf16."""
    found = {formats(name) for name in names}
    return found.pop() if len(found) == 1 else BF16
