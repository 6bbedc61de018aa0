"""The latency model: the time per token is the sum over the layers of the longer of streaming and hand-offs.

Weights do not depend on activations, so the ring fills while workers wait for a hand-off, and a layer takes

    max( bytes / bandwidth + pauses,  hand-offs + unpacking + exposed exchanges )

A pause is the share of a hand-off during which memory is idle although the ring has free slots. Workers need time to
unpack low-bit weights, and cannot while they wait for a hand-off; other weights they consume much faster than memory
delivers them. Which experts a token reads is known only after their router. So a layer with experts is two steps, one
up to the router and one after it, which begins with empty rings: memory is idle for the whole hand-off, while every
worker chooses, and until the first bytes arrive. An exchange replaces a hand-off where lanes wait for each other. With
a delay of d modules its result is needed only d modules later, so a module takes at least 1/d of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from monolane.planner.parts import Part, Weights, share
from monolane.planner.precision import Precision
from monolane.planner.shape import HEAD_STAGES, Layer, Shape

MICRO = 1e6
MODULES = 2  # of a layer: attention, feed-forward
ROUTER_STAGES = 1
BF16_BYTES = 2  # of a weight


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
    unpacking: float  # low-bit weights that workers unpack while memory at its ceiling delivers one in bf16
    router_us: float  # from the logits of a router to the first bytes of an expert, without the hand-off

    @property
    def pause_us(self) -> float:
        return self.handoff_us * self.leak


@dataclass(frozen=True)
class Step:
    """The work of one lane in one kind of layer, or in the head."""

    times: int  # per token
    weights: float  # bytes
    low_bit: float  # weights, not bytes, that have fewer than 16 bits
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
    unpacking: float = 0.0

    @property
    def us(self) -> float:
        return sum(self.terms().values())

    @property
    def binds(self) -> str:
        """The name of the largest term."""
        terms = self.terms()
        return max(terms, key=lambda term: terms[term])

    def terms(self) -> dict[str, float]:
        return {
            "weights": self.weights,
            "unpacking": self.unpacking,
            "cache": self.cache,
            "hand-offs": self.handoffs,
            "exchanges": self.exchanges,
        }

    def plus(self, other: TokenTime, times: int) -> TokenTime:
        return TokenTime(
            self.weights + times * other.weights,
            self.cache + times * other.cache,
            self.handoffs + times * other.handoffs,
            self.exchanges + times * other.exchanges,
            self.unpacking + times * other.unpacking,
        )


def steps(shape: Shape, precision: Precision, context: int, lanes: Lanes) -> tuple[Step, ...]:
    """The work of the lane that has the most, for one token."""
    return tuple(_steps(shape, precision, context, lanes))


def _steps(shape: Shape, precision: Precision, context: int, lanes: Lanes) -> Iterator[Step]:
    several = lanes.count > 1
    for layer, times in shape.kinds:
        cache = layer.mixer.cache(context)
        weights = layer.weights(shape.hidden)
        later = _behind_router(layer, weights)
        exchanges = MODULES if several else 0
        before = Step(
            times,
            *_bytes([one for one in weights if one not in later], precision, lanes.count),
            cache.moved * share(cache.units, lanes.count),
            layer.stages,
            0,
            exchanges,
            lanes.delay,
        )
        if not later:
            yield before
            continue
        stages = layer.ffn.stages - ROUTER_STAGES
        yield replace(before, stages=before.stages - stages, exchanges=exchanges // MODULES)
        sizes = _bytes(later, precision, lanes.count)
        yield Step(times, *sizes, 0.0, stages, layer.ffn.blind, exchanges // MODULES, lanes.delay)
    # Each lane has a part of the vocabulary, and all need the chosen token: the head's exchange cannot be delayed.
    yield Step(1, *_bytes(shape.head_weights(), precision, lanes.count), 0.0, HEAD_STAGES, 0, 1 if several else 0, 0)


def _behind_router(layer: Layer, weights: Sequence[Weights]) -> list[Weights]:
    """The weights that cannot be read before a router has chosen."""
    return [one for one in weights if one.part in (Part.ROUTED, Part.SHARED)] if layer.ffn.blind else []


def _bytes(weights: Sequence[Weights], precision: Precision, lanes: int) -> tuple[float, float]:
    """The bytes that one lane reads, and how many weights of low-bit formats."""
    low_bit = [one for one in weights if precision.is_low_bit(one.part)]
    return (
        sum(precision.active_bytes(one) * share(one.units, lanes) for one in weights),
        sum(one.active * share(one.units, lanes) for one in low_bit),
    )


def token_time(work: Sequence[Step], bandwidth: float, latencies: Latencies, exchange_us: float = 0.0) -> TokenTime:
    """The time of a token where each lane has a read ceiling of ``bandwidth`` bytes per second."""
    total = TokenTime()
    for step in work:
        total = total.plus(_step_time(step, bandwidth, latencies, exchange_us), step.times)
    return total


def _step_time(step: Step, bandwidth: float, latencies: Latencies, exchange_us: float) -> TokenTime:
    chosen_us = step.blind * latencies.router_us
    streaming = TokenTime(
        weights=step.weights / (bandwidth * latencies.efficiency) * MICRO,
        cache=step.cache / (bandwidth * latencies.cache_efficiency) * MICRO,
        handoffs=(step.stages - step.blind) * latencies.pause_us + step.blind * latencies.handoff_us + chosen_us,
        exchanges=step.exchanges * latencies.pause_us,
    )
    handoffs = step.stages * latencies.handoff_us + chosen_us
    unpacking = step.low_bit * BF16_BYTES / (bandwidth * latencies.unpacking) * MICRO
    if step.delay:
        exposed = max(0.0, step.exchanges * exchange_us / step.delay - handoffs)
    else:
        exposed = step.exchanges * max(0.0, exchange_us - latencies.handoff_us)
    waiting = TokenTime(unpacking=unpacking, handoffs=handoffs, exchanges=exposed)
    return max(streaming, waiting, key=lambda time: time.us)
