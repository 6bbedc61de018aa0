"""The shape of a model, as the planner needs it: layers made of parts, and the numbers of their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from monolane.model.config import ModelConfig
from monolane.planner.feedforward import Dense, Experts
from monolane.planner.mixers import GroupedAttention
from monolane.planner.parts import FeedForward, Mixer, Part, Weights, small


@dataclass(frozen=True)
class Layer:
    """One layer of a model."""

    mixer: Mixer
    ffn: FeedForward
    streams: int = 1  # residual vectors; more than 1 are mixed before and after each part (hyper-connections)

    @property
    def stages(self) -> int:
        return self.mixer.stages + self.ffn.stages

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        return *self.mixer.weights(hidden), *self.ffn.weights(hidden), small(2 * hidden + self._mixing(hidden))

    def _mixing(self, hidden: int) -> int:
        if self.streams == 1:
            return 0
        weights = (2 + self.streams) * self.streams
        return 2 * (weights * self.streams * hidden + weights + 3)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    hidden: int
    vocab: int
    tied: bool
    context: int  # tokens, at most
    layers: tuple[Layer, ...]

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Every kind of layer, with the number of such layers."""
        return tuple(Counter(self.layers).items())

    def head_weights(self) -> tuple[Weights, ...]:
        """The weights before and after the layers, which are read once per token."""
        table = self.vocab * self.hidden
        streams = self.layers[0].streams
        mixing = streams * streams * self.hidden + streams + 1 if streams > 1 else 0
        return (
            Weights(Part.HEAD, 0 if self.tied else table, table, self.vocab),
            # A tied table is the head's and divided among lanes like it; a separate table is kept by every lane.
            Weights(Part.EMBEDDING, table, self.hidden, self.vocab if self.tied else 1),
            small(self.hidden + mixing),
        )

    def all_weights(self) -> Iterator[tuple[Weights, int]]:
        """All weights, each with the number of layers that have them."""
        for layer, count in self.kinds:
            yield from ((weights, count) for weights in layer.weights(self.hidden))
        yield from ((weights, 1) for weights in self.head_weights())

    @property
    def parameters(self) -> int:
        return sum(weights.stored * count for weights, count in self.all_weights())

    @property
    def active_parameters(self) -> int:
        """The number of weights that one token reads; of the embedding that is one row."""
        return sum(weights.active * count for weights, count in self.all_weights())

    @property
    def handoffs(self) -> int:
        """Hand-offs per token: one before every stage of the program except the embedding."""
        return sum(layer.stages * count for layer, count in self.kinds) + HEAD_STAGES


HEAD_STAGES = 2  # the head, sampling


def shape_of(config: ModelConfig) -> Shape:
    """The shape of a model that Monolane can run."""
    layers = tuple(
        Layer(
            GroupedAttention(
                config.heads,
                config.kv_heads,
                config.head_dim,
                window,
                config.qkv_bias,
                config.o_bias,
                config.qk_norm,
                config.sinks,
            ),
            _feed_forward(config, number),
        )
        for number, window in enumerate(config.windows)
    )
    return Shape(config.hidden, config.vocab, config.tied, config.context, layers)


def _feed_forward(config: ModelConfig, layer: int) -> FeedForward:
    experts = config.experts
    if experts is None or not config.has_experts(layer):
        return Dense(config.ffn, config.mlp_bias)
    shared = experts.shared_ffn or 0
    return Experts(experts.count, experts.chosen, experts.ffn, shared, shared > 0, experts.biased)
