"""A model as the planner sees it: layers made of parts, and what they weigh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from monolane.model.config import ModelConfig
from monolane.planner.feedforward import Dense
from monolane.planner.mixers import GroupedAttention
from monolane.planner.parts import FeedForward, Mixer, Part, Weights, small


@dataclass(frozen=True)
class Layer:
    """``streams`` above 1: the residual is several vectors, mixed before and after each part (hyper-connections)."""

    mixer: Mixer
    ffn: FeedForward
    streams: int = 1

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
    """``context`` is the longest the model was made for."""

    hidden: int
    vocab: int
    tied: bool
    context: int
    layers: tuple[Layer, ...]

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Every kind of layer, and how many there are of it."""
        return tuple(Counter(self.layers).items())

    def head_weights(self) -> tuple[Weights, ...]:
        """What is read once per token, before and after the layers."""
        table = self.vocab * self.hidden
        streams = self.layers[0].streams
        mixing = streams * streams * self.hidden + streams + 1 if streams > 1 else 0
        return (
            Weights(Part.HEAD, 0 if self.tied else table, table, self.vocab),
            # A tied table lies where the head lies, divided as the head is; one of its own is kept by every lane.
            Weights(Part.EMBEDDING, table, self.hidden, self.vocab if self.tied else 1),
            small(self.hidden + mixing),
        )

    def all_weights(self) -> Iterator[tuple[Weights, int]]:
        """All weights, each with the number of times it is there."""
        for layer, count in self.kinds:
            yield from ((weights, count) for weights in layer.weights(self.hidden))
        yield from ((weights, 1) for weights in self.head_weights())

    @property
    def parameters(self) -> int:
        return sum(weights.stored * count for weights, count in self.all_weights())

    @property
    def active_parameters(self) -> int:
        """Weights that one token reads; of the embedding, its row."""
        return sum(weights.active * count for weights, count in self.all_weights())

    @property
    def handoffs(self) -> int:
        """As a program counts them: one before every stage but the look-up of the embedding."""
        return sum(layer.stages * count for layer, count in self.kinds) + HEAD_STAGES


HEAD_STAGES = 2  # the head, sampling


def shape_of(config: ModelConfig) -> Shape:
    """A model that this program runs."""
    layers = tuple(
        Layer(
            GroupedAttention(
                config.heads, config.kv_heads, config.head_dim, window, config.qkv_bias, config.o_bias, config.qk_norm
            ),
            Dense(config.ffn, config.mlp_bias),
        )
        for window in config.windows
    )
    return Shape(config.hidden, config.vocab, config.tied, config.context, layers)
