"""What a token takes: layer by layer, the longer of streaming its bytes and waiting for its hand-offs.

Weights do not depend on activations, so memory fills the ring while workers hand over, and a layer takes

    max( bytes / bandwidth + what hand-offs leak,  hand-offs + exchanges that are not hidden )

A hand-off leaks a share of it, a pause: what memory loses even where the ring has room. Experts are known only after
their router, so that nothing can be fetched ahead, and memory loses the whole hand-off. An exchange takes the place of
a hand-off where lanes wait for each other; delayed by d modules it must only be over d modules later, so that a module
takes at least 1/d of it.
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
    """``delay`` counts modules; 0 is ordinary tensor parallelism."""

    count: int = 1
    exchange_us: float = 0.0
    delay: int = 0


@dataclass(frozen=True)
class Latencies:
    """What calibration finds. ``leak``: the share of a hand-off that memory loses although the ring has room.

    Efficiencies are shares of the ceiling, reached while nothing else waits.
    """

    handoff_us: float
    leak: float
    efficiency: float
    cache_efficiency: float

    @property
    def pause_us(self) -> float:
        return self.handoff_us * self.leak


@dataclass(frozen=True)
class Step:
    """One kind of layer, or the head: what one lane does ``times`` times a token. Sizes in bytes."""

    times: int
    weights: float
    cache: float
    stages: int
    blind: int
    exchanges: int
    delay: int


@dataclass(frozen=True)
class TokenTime:
    """A token's µs, by what they are spent on. What is hidden behind something longer counts nothing."""

    weights: float = 0.0
    cache: float = 0.0
    handoffs: float = 0.0
    exchanges: float = 0.0

    @property
    def us(self) -> float:
        return self.weights + self.cache + self.handoffs + self.exchanges

    @property
    def binds(self) -> str:
        """The term that takes the most."""
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
    """What the lane with the most to do does for one token."""
    return tuple(_steps(shape, precision, context, lanes))


def _steps(shape: Shape, precision: Precision, context: int, lanes: Lanes) -> Iterator[Step]:
    several = lanes.count > 1
    for layer, times in shape.kinds:
        cache = layer.mixer.cache(context)
        yield Step(
            times,
            _bytes(layer.weights(shape.hidden), precision, lanes.count),
            cache.moved * share(cache.units, lanes.count),
            layer.stages,
            layer.ffn.blind,
            MODULES if several else 0,
            lanes.delay,
        )
    # The head's lanes have a part of the vocabulary each, and agree on a token: nothing can be late there.
    yield Step(1, _bytes(shape.head_weights(), precision, lanes.count), 0.0, HEAD_STAGES, 0, 1 if several else 0, 0)


def _bytes(weights: Sequence[Weights], precision: Precision, lanes: int) -> float:
    return sum(precision.active_bytes(one) * share(one.units, lanes) for one in weights)


def token_time(work: Sequence[Step], bandwidth: float, latencies: Latencies, exchange_us: float = 0.0) -> TokenTime:
    """A token on lanes that each read ``bandwidth`` bytes per second at best."""
    total = TokenTime()
    for step in work:
        total = total.plus(_step_time(step, bandwidth, latencies, exchange_us), step.times)
    return total


def _step_time(step: Step, bandwidth: float, latencies: Latencies, exchange_us: float) -> TokenTime:
    streaming = TokenTime(
        weights=step.weights / (bandwidth * latencies.efficiency) * MICRO,
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
