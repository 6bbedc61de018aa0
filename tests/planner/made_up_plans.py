"""Random models and machines for tests of the planner, and results computed from known latencies."""

from __future__ import annotations

from hypothesis import strategies as st

from monolane.planner.calibration import Result
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.feedforward import Dense, Experts
from monolane.planner.latency import Lanes, Latencies, steps, token_time
from monolane.planner.machines import Cluster, Machine
from monolane.planner.mixers import CompressedAttention, GroupedAttention, LatentAttention, LinearAttention
from monolane.planner.parts import FeedForward, Mixer
from monolane.planner.precision import named
from monolane.planner.shape import Layer, Shape
from monolane.planner.source import Described, from_entry

CEILING = 4.5e12

small_counts = st.integers(1, 64)
mixers: st.SearchStrategy[Mixer] = st.one_of(
    st.builds(GroupedAttention, small_counts, small_counts, small_counts, st.none() | st.integers(1, 5000)),
    st.builds(
        LatentAttention, small_counts, st.none() | small_counts, small_counts, small_counts, small_counts, small_counts
    ),
    st.builds(LinearAttention, small_counts, small_counts, small_counts, small_counts, st.integers(2, 5)),
    st.builds(
        CompressedAttention, small_counts, small_counts, small_counts, small_counts, small_counts, st.integers(1, 500),
        st.none() | st.sampled_from([4, 128]), st.none() | st.integers(1, 600), small_counts, small_counts,
    ),
)  # fmt: skip
feed_forwards: st.SearchStrategy[FeedForward] = st.one_of(
    st.builds(Dense, st.integers(1, 20_000), st.booleans()),
    st.builds(
        Experts, st.integers(4, 64), st.integers(1, 4), st.integers(1, 4000), st.integers(0, 4000), st.booleans(),
        st.booleans(), st.booleans(),
    ),
)  # fmt: skip
shapes: st.SearchStrategy[Shape] = st.builds(
    Shape,
    hidden=st.integers(8, 4096),
    vocab=st.integers(10, 200_000),
    tied=st.booleans(),
    context=st.just(1 << 20),
    layers=st.lists(st.builds(Layer, mixers, feed_forwards, st.integers(1, 4)), min_size=1, max_size=6).map(tuple),
)
latencies = st.builds(
    Latencies, st.floats(0.1, 20.0), st.floats(0.01, 1.0), st.floats(0.3, 1.0), st.floats(0.3, 1.0),
    st.floats(1.0, 9.0), st.floats(0.1, 20.0),
)  # fmt: skip


def described(shape: Shape) -> Described:
    return Described("made up", shape, lambda: named("bf16"))


def machine(bandwidth: float = 5e12, memory: int = 10**15) -> Machine:
    assumed = {"ceiling": "made up", "exchange": "made up"}
    return Machine("made up", "gpu", memory, bandwidth, 0.9, 3.0, assumed)


def several(count: int, one: Machine | None = None) -> Cluster:
    return Cluster(one or machine(), count, count)


def result_of(
    model: str, truth: Latencies, *, context: int = 384, on: str = "H200", off: float = 0.0, weights: str = "bf16"
) -> Result:
    """What a machine of these latencies would have measured, off by this share."""
    described = from_entry(CATALOGUE[model])
    work = steps(described.shape, described.precision(weights), context, Lanes())
    us = token_time(work, CEILING, truth).us * (1 + off)
    return Result(f"decode-{model}.json", model, on, "gpu", CEILING, work, us, weights)
