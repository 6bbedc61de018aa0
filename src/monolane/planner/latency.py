"""The latency model: the time per token is the sum over the layers of the longer of streaming and hand-offs.

Weights do not depend on activations, so the ring fills while workers wait for a hand-off, and a layer takes

    max( bytes / bandwidth + pauses,  hand-offs + exposed exchanges )

A pause is the share of a hand-off during which memory is idle although the ring has free slots. Which experts a token
reads is known only after their router, so their weights cannot be prefetched, and memory is idle for the whole
hand-off. An exchange replaces a hand-off where lanes wait for each other. With a delay of d modules its result is
needed only d modules later, so a module takes at least 1/d of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from monolane.planner.parts import Weights, share
from monolane.planner.precision import Precision
from monolane.planner.shape import HEAD_STAGES, Shape

MICRO = 1e6
MODULES = 2  # of a layer: attention, feed-forward


@dataclass(frozen=True)
class Lanes:
    """How a model is divided among lanes."""

    count: int = 1
    exchange_us: float = 0.0
    delay: int = 0  # of exchanges, in modules; 0 is ordinary tensor parallelism


@dataclass(frozen=True)
class Latencies:
    """The parameters of the latency model, which calibration fits."""

    handoff_us: float
    leak: float  # the share of a hand-off during which memory is idle although the ring has free slots
    efficiency: float  # the share of the ceiling at which weights are streamed, without hand-offs
    cache_efficiency: float  # likewise of the KV cache
    low_bit: float  # the share of ``efficiency`` that low-bit weights reach: their codes are unpacked

    @property
    def pause_us(self) -> float:
        return self.handoff_us * self.leak


@dataclass(frozen=True)
class Step:
    """The work of one lane in one kind of layer, or in the head."""

    times: int  # per token
    weights: float  # bytes, of which ``low_bit`` have fewer than 16 bits per weight
    low_bit: float  # bytes
    cache: float  # bytes
    stages: int
    blind: int  # stages whose weights cannot be prefetched
    exchanges: int
    delay: int  # of the exchanges, in modules


@dataclass(frozen=True)
class TokenTime:
    """The time of a token in µs, by what it is spent on. Work that is hidden behind longer work counts 0."""

    weights: float = 0.0
    cache: float = 0.0
    handoffs: float = 0.0
    exchanges: float = 0.0

    @property
    def us(self) -> float:
        return self.weights + self.cache + self.handoffs + self.exchanges

    @property
    def binds(self) -> str:
        """The name of the largest term."""
        terms = self.terms()
        return max(terms, key=lambda term: terms[term])

    def terms(self) -> dict[str, float]:
        return {"weights": self.weights, "cache": self.cache, "hand-offs": self.handoffs, "exchanges": self.exchanges}

    def plus(self, other: TokenTime, times: int) -> TokenTime:
        return TokenTime(
            self.weights + times * other.weights,
            self.cache + times * other.cache,
            self.handoffs + times * other.handoffs,
            self.exchanges + times * other.exchanges,
        )


def steps(shape: Shape, precision: Precision, context: int, lanes: Lanes) -> tuple[Step, ...]:
    """The work of the lane that has the most, for one token."""
    return tuple(_steps(shape, precision, context, lanes))


def _steps(shape: Shape, precision: Precision, context: int, lanes: Lanes) -> Iterator[Step]:
    several = lanes.count > 1
    for layer, times in shape.kinds:
        cache = layer.mixer.cache(context)
        yield Step(
            times,
            *_bytes(layer.weights(shape.hidden), precision, lanes.count),
            cache.moved * share(cache.units, lanes.count),
            layer.stages,
            layer.ffn.blind,
            MODULES if several else 0,
            lanes.delay,
        )
    # Each lane has a part of the vocabulary, and all need the chosen token: the head's exchange cannot be delayed.
    yield Step(1, *_bytes(shape.head_weights(), precision, lanes.count), 0.0, HEAD_STAGES, 0, 1 if several else 0, 0)


def _bytes(weights: Sequence[Weights], precision: Precision, lanes: int) -> tuple[float, float]:
    """The bytes that one lane reads, and those of them in low-bit formats."""
    sizes = [(one.part, precision.active_bytes(one) * share(one.units, lanes)) for one in weights]
    return sum(size for _, size in sizes), sum(size for part, size in sizes if precision.is_low_bit(part))


def token_time(work: Sequence[Step], bandwidth: float, latencies: Latencies, exchange_us: float = 0.0) -> TokenTime:
    """The time of a token where each lane has a read ceiling of ``bandwidth`` bytes per second."""
    total = TokenTime()
    for step in work:
        total = total.plus(_step_time(step, bandwidth, latencies, exchange_us), step.times)
    return total


def _step_time(step: Step, bandwidth: float, latencies: Latencies, exchange_us: float) -> TokenTime:
    streaming = TokenTime(
        weights=(step.weights - step.low_bit + step.low_bit / latencies.low_bit)
        / (bandwidth * latencies.efficiency)
        * MICRO,
        cache=step.cache / (bandwidth * latencies.cache_efficiency) * MICRO,
        handoffs=(step.stages - step.blind) * latencies.pause_us + step.blind * latencies.handoff_us,
        exchanges=step.exchanges * latencies.pause_us,
    )
    handoffs = step.stages * latencies.handoff_us
    if step.delay:
        exposed = max(0.0, step.exchanges * exchange_us / step.delay - handoffs)
    else:
        exposed = step.exchanges * max(0.0, exchange_us - latencies.handoff_us)
    waiting = TokenTime(handoffs=handoffs, exchanges=exposed)
    return max(streaming, waiting, key=lambda time: time.us)
