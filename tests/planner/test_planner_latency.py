"""The latency model: monotonicity, the largest term, lanes and delays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_plans import described, latencies, machine, several, shapes

from monolane.errors import ResourceError, UsageError
from monolane.planner import low_bit
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.feedforward import Dense, Experts
from monolane.planner.footprint import footprint
from monolane.planner.latency import Lanes, Latencies, steps, token_time
from monolane.planner.machines import MACHINES, Cluster
from monolane.planner.mixers import CompressedAttention, LatentAttention, LinearAttention
from monolane.planner.precision import FORMATS, named
from monolane.planner.prediction import predict
from monolane.planner.shape import Shape
from monolane.planner.source import from_entry

LANES = st.builds(Lanes, st.integers(1, 16), st.floats(0.0, 20.0), st.integers(0, 8))
CONTEXTS = st.integers(0, 200_000)
BANDWIDTHS = st.floats(1e9, 1e13)
KNOWN = Latencies(handoff_us=2.0, leak=0.5, efficiency=1.0, cache_efficiency=1.0, unpacking=8.0, router_us=3.0)
SLACK = 1 + 1e-9


def us(shape: Shape, dtype: str, context: int, bandwidth: float, known: Latencies, lanes: Lanes) -> float:
    return token_time(steps(shape, named(dtype), context, lanes), bandwidth, known, lanes.exchange_us).us


@settings(max_examples=60, deadline=None)
@given(shapes, CONTEXTS, BANDWIDTHS, st.floats(1.0, 100.0), latencies, LANES)
def test_more_bandwidth_is_never_slower(
    shape: Shape, context: int, bandwidth: float, factor: float, known: Latencies, lanes: Lanes
) -> None:
    slow = us(shape, "bf16", context, bandwidth, known, lanes)
    assert us(shape, "bf16", context, bandwidth * factor, known, lanes) <= slow * SLACK


@settings(max_examples=60, deadline=None)
@given(shapes, CONTEXTS, CONTEXTS, BANDWIDTHS, latencies, LANES)
def test_a_longer_context_is_never_faster(
    shape: Shape, first: int, second: int, bandwidth: float, known: Latencies, lanes: Lanes
) -> None:
    short, long = (us(shape, "bf16", length, bandwidth, known, lanes) for length in sorted((first, second)))
    assert short <= long * SLACK


@settings(max_examples=60, deadline=None)
@given(shapes, CONTEXTS, BANDWIDTHS, latencies, LANES)
def test_more_bytes_are_never_faster(
    shape: Shape, context: int, bandwidth: float, known: Latencies, lanes: Lanes
) -> None:
    by_size = sorted(FORMATS, key=lambda name: FORMATS[name])
    quick = replace(known, unpacking=1e9)  # bf16 need not be unpacked
    times = [us(shape, dtype, context, bandwidth, quick, lanes) for dtype in by_size]
    assert all(fewer <= more * SLACK for fewer, more in pairwise(times))
    longer = replace(shape, layers=(*shape.layers, shape.layers[0]))
    assert us(shape, "bf16", context, bandwidth, known, lanes) <= us(longer, "bf16", context, bandwidth, known, lanes)


@settings(max_examples=60, deadline=None)
@given(shapes, BANDWIDTHS, latencies, LANES, st.floats(1.0, 10.0))
def test_slower_hand_offs_and_exchanges_are_never_faster(
    shape: Shape, bandwidth: float, known: Latencies, lanes: Lanes, factor: float
) -> None:
    before = us(shape, "bf16", 100, bandwidth, known, lanes)
    slower = replace(known, handoff_us=known.handoff_us * factor)
    assert before <= us(shape, "bf16", 100, bandwidth, slower, lanes) * SLACK
    farther = replace(lanes, exchange_us=lanes.exchange_us * factor)
    assert before <= us(shape, "bf16", 100, bandwidth, known, farther) * SLACK


@settings(max_examples=60, deadline=None)
@given(shapes, BANDWIDTHS, latencies, LANES)
def test_a_longer_delay_is_never_slower(shape: Shape, bandwidth: float, known: Latencies, lanes: Lanes) -> None:
    later = replace(lanes, delay=lanes.delay + 1)
    assert us(shape, "bf16", 0, bandwidth, known, later) <= us(shape, "bf16", 0, bandwidth, known, lanes) * SLACK


@settings(max_examples=60, deadline=None)
@given(shapes, CONTEXTS, BANDWIDTHS, latencies, LANES)
def test_no_prediction_beats_the_roofline_and_terms_add_up(
    shape: Shape, context: int, bandwidth: float, known: Latencies, lanes: Lanes
) -> None:
    time = token_time(steps(shape, named("bf16"), context, lanes), bandwidth, known, lanes.exchange_us)
    read = footprint(shape, named("bf16"), context, lanes.count).total.lane_active
    assert time.us >= read / bandwidth * 1e6 / SLACK
    assert time.us == pytest.approx(sum(time.terms().values()))
    assert time.terms()[time.binds] == max(time.terms().values())


def test_a_layer_takes_the_longer_of_its_two_sides() -> None:
    shape = from_entry(CATALOGUE["llama-3.2-1b"]).shape
    work = steps(shape, named("bf16"), 0, Lanes())
    read = footprint(shape, named("bf16"), 0, 1).total.active
    starved = token_time(work, 1e9, KNOWN)
    assert starved.binds == "weights"
    assert starved.us == pytest.approx(read / 1e9 * 1e6 + shape.handoffs * KNOWN.pause_us)
    flooded = token_time(work, 1e18, KNOWN)
    assert flooded.binds == "hand-offs"
    assert flooded.us == pytest.approx(shape.handoffs * KNOWN.handoff_us)
    assert flooded.weights == 0


def test_low_bit_weights_take_the_longer_of_reading_and_of_unpacking_between_hand_offs() -> None:
    shape = from_entry(CATALOGUE["llama-3.2-1b"]).shape
    work = steps(shape, low_bit.chosen("q4", shape), 0, Lanes())
    weights = sum(step.times * step.low_bit for step in work)
    assert weights == pytest.approx(shape.active_parameters, rel=0.001)  # all but norms
    slow, quick = (token_time(work, 1e12, replace(KNOWN, unpacking=value)) for value in (1.0, 100.0))
    assert slow.binds == "unpacking"
    assert slow.us == pytest.approx(2 * weights / 1e12 * 1e6 + shape.handoffs * KNOWN.handoff_us)
    assert quick.unpacking == 0
    assert quick.weights == pytest.approx(footprint(shape, low_bit.chosen("q4", shape), 0, 1).total.active / 1e12 * 1e6)


def test_experts_cannot_be_fetched_before_their_router() -> None:
    """A mixture reads as many bytes and has one stage more, but its hand-off before the experts is paid in full, and
    so is the choice."""
    base = from_entry(CATALOGUE["llama-3.2-1b"]).shape
    mixture = Experts(count=8, chosen=1, ffn=8192)
    layers = tuple(replace(layer, ffn=mixture) for layer in base.layers)
    known, hashed = (
        token_time(steps(replace(base, layers=made), named("bf16"), 0, Lanes()), 1e12, KNOWN)
        for made in (layers, tuple(replace(layer, ffn=replace(mixture, hashed=True)) for layer in layers))
    )
    in_full = KNOWN.handoff_us + KNOWN.router_us
    assert known.us - hashed.us == pytest.approx(len(layers) * (in_full - KNOWN.pause_us))
    assert isinstance(base.layers[0].ffn, Dense)


def test_lanes_divide_weights_and_add_exchanges_and_a_delay_hides_them() -> None:
    shape = from_entry(CATALOGUE["laneformer-2b"]).shape

    def time(lanes: Lanes) -> float:
        return us(shape, "bf16", 0, 1e15, KNOWN, lanes)  # streaming takes no time: only waiting is left

    alone, together = time(Lanes()), time(Lanes(8, exchange_us=5.0))
    exchanges = 2 * len(shape.layers) + 1
    assert together - alone == pytest.approx(exchanges * (5.0 - KNOWN.handoff_us))
    late = time(Lanes(8, exchange_us=5.0, delay=4))
    assert late - alone == pytest.approx(5.0 - KNOWN.handoff_us)  # the head's, which cannot be late
    far = time(Lanes(8, exchange_us=100.0, delay=4))
    assert far - alone == pytest.approx(len(shape.layers) * (2 * 100 / 4 - 5 * 2.0) + 100 - 2.0)


def test_heads_that_lanes_cannot_share_evenly_are_the_longest_lanes() -> None:
    """SmolLM2 has 9 query heads and 3 for keys and values: one of 8 lanes has two of the former, each one of the 3."""
    shape = from_entry(CATALOGUE["smollm2-135m"]).shape
    one, eight = (footprint(shape, named("bf16"), 1000, lanes) for lanes in (1, 8))
    assert eight.cache.lane_held == pytest.approx(one.cache.held / 3)
    attention = (2 * 576 * 576 * 2 / 9 + 2 * 192 * 576 / 3) * 2 * 30
    assert eight.rows[0].lane_active == pytest.approx(attention)


def test_windows_and_states_bound_the_cache() -> None:
    laneformer, next_, flash = (
        from_entry(CATALOGUE[name]).shape for name in ("laneformer-2b", "qwen3-coder-next", "deepseek-v4-flash")
    )

    def cache(shape: Shape, context: int) -> float:
        return footprint(shape, named("bf16"), context, 1).cache.held

    per_token = 2 * 16 * 96 * 2
    assert cache(laneformer, 4096) == per_token * (10 * 512 + 5 * 4096)
    state = cache(next_, 0)
    assert state > 0
    assert cache(next_, 1000) - state == 12 * 2 * 2 * 256 * 2 * 1000  # every fourth layer attends
    full = 2 * 8 * 128 * 2 * 32  # of a token in Llama 3.1 8B
    assert cache(flash, 100_000) < full * 100_000 / 10


def test_what_a_token_reads_of_caches_that_are_more_than_keys_and_values() -> None:
    linear = LinearAttention(key_heads=2, value_heads=4, key_dim=8, value_dim=16, kernel=4).cache(1000)
    assert linear.moved == 2 * linear.held  # read and written
    latent = LatentAttention(heads=4, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128).cache(1000)
    assert (latent.held, latent.moved, latent.units) == (1_152_000, 1_152_000, 1)
    heavy = CompressedAttention(4, 64, q_rank=8, o_groups=2, o_rank=8, window=128, rate=128)
    assert heavy.cache(1280).moved == heavy.cache(1280).held == (128 + 10) * 64 * 2
    sparse = replace(heavy, rate=4, top_k=20, index_heads=2, index_dim=16)
    assert sparse.cache(1000).held == ((128 + 250) * 64 + 250 * 16) * 2
    assert sparse.cache(1000).moved == ((128 + 20) * 64 + 250 * 16) * 2  # all short keys, the best positions


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    model = from_entry(CATALOGUE["kimi-k2.6"])
    with pytest.raises(ResourceError, match=r"Kimi-K2.6 does not fit 4 x H200: .* 152\.2 GB .* 133\.9 GB") as caught:
        predict(model, several(4, MACHINES["H200"]), [], dtype="published")
    assert "--weights" in caught.value.hint
    assert predict(model, several(8, MACHINES["H200"]), [], dtype="published").lanes.count == 8


def test_the_cache_counts_as_well() -> None:
    model = from_entry(CATALOGUE["llama-3.1-8b"])
    small = several(1, machine(memory=18 * 10**9))
    assert predict(model, small, [], dtype="bf16", context=4096).context == 4096
    with pytest.raises(ResourceError, match=r"17\.\d GB of cache for 131,072 tokens"):
        predict(model, small, [], dtype="bf16", context=131_072)


@pytest.mark.parametrize(
    ("asked", "lanes", "says"),
    [
        ({"context": 10**6}, 1, "131,072"),
        ({"context": -1}, 1, "-1"),
        ({"delay": 4}, 1, "one lane"),
        ({"delay": 64}, 2, "64 modules"),
        ({"delay": -1}, 2, "-1 modules"),
        ({"dtype": "int3"}, 1, "int3"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], lanes: int, says: str) -> None:
    model = from_entry(CATALOGUE["llama-3.1-8b"])
    options = {"dtype": "bf16", **asked}
    with pytest.raises(UsageError, match=says):
        predict(model, several(lanes), [], **options)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(1, 16))
def test_predictions_need_no_results(shape: Shape, lanes: int) -> None:
    found = predict(described(shape), Cluster(machine(), lanes, lanes), [], dtype="bf16", context=100)
    assert found.error is None
    assert found.tokens_per_s_range is None
    assert found.time.us > 0
