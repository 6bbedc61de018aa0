"""Calibration finds a machine's latencies from its results, also from few, and its error bar is right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_plans import CEILING, result_of

from monolane.bench.report.record import RESULTS
from monolane.planner.calibration import (
    EXPERTS,
    LOW_BIT,
    OWN_LANES,
    calibrate,
    fit,
    measured_ceiling,
    predicted_us,
    read_results,
    root_mean_square,
)
from monolane.planner.latency import Latencies
from monolane.planner.machines import MACHINES
from monolane.target.cuda.predict import HANDOFF_US, PAUSE_US

TRUTH = Latencies(handoff_us=2.2, leak=0.6, efficiency=0.97, cache_efficiency=0.7, unpacking=2.0, router_us=6.0)
MODELS = ("llama-3.2-1b", "smollm2-135m", "qwen2.5-coder-1.5b", "qwen3-1.7b")
H200 = MACHINES["H200"]


def test_the_machine_that_made_the_results_is_found() -> None:
    results = [result_of(model, TRUTH, context=context) for model in MODELS for context in (100, 8000)]
    found = calibrate(H200, results)
    unseen = result_of("llama-3.1-8b", TRUTH)
    assert predicted_us(unseen, found.latencies) == pytest.approx(unseen.us, rel=0.03)
    assert found.error is not None
    assert found.error < 0.05


def test_low_bit_results_show_how_fast_low_bit_weights_are() -> None:
    bf16 = [result_of(model, TRUTH) for model in MODELS]
    low_bit = [result_of(model, TRUTH, weights="q4_k_m") for model in MODELS[:2]]
    unseen = result_of("llama-3.1-8b", TRUTH, weights="q4")
    without, found = calibrate(H200, bf16), calibrate(H200, bf16 + low_bit)
    assert (without.covered, found.covered) == (frozenset(), {LOW_BIT})
    assert predicted_us(unseen, without.latencies) < 0.9 * unseen.us  # what a probe has shown is too good
    assert predicted_us(unseen, found.latencies) == pytest.approx(unseen.us, rel=0.05)


def test_results_of_experts_show_what_a_router_costs() -> None:
    dense = [result_of(model, TRUTH) for model in MODELS]
    mixtures = [result_of("gpt-oss-20b", TRUTH, weights="mxfp4+bf16"), result_of("qwen3-30b-a3b", TRUTH)]
    unseen = result_of("gpt-oss-120b", TRUTH, weights="mxfp4+q8")
    without, found = calibrate(H200, dense), calibrate(H200, dense + mixtures)
    assert found.covered == {LOW_BIT, EXPERTS}
    assert predicted_us(unseen, without.latencies) < 0.9 * unseen.us
    assert predicted_us(unseen, found.latencies) == pytest.approx(unseen.us, rel=0.08)


def test_the_error_of_a_plan_is_that_of_results_like_it() -> None:
    """What is hard to predict widens the error bar of plans with the same, and of no others."""
    plain = [result_of(model, TRUTH) for model in MODELS]
    wild = [
        result_of(model, TRUTH, weights="q4_k_m", off=off)
        for model, off in zip(MODELS, (0.3, -0.3, 0.3, -0.3), strict=True)
    ]
    found = calibrate(H200, plain + wild)
    errors = [
        root_mean_square(found.comparable(frozenset(traits))) for traits in ((), (LOW_BIT,), (LOW_BIT, OWN_LANES))
    ]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[1] > max(0.2, 2 * errors[0])
    assert errors[2] == errors[1]
    assert calibrate(H200, wild).comparable(frozenset())  # better than none


def test_without_results_the_probes_speak() -> None:
    found = calibrate(H200, [])
    assert (found.latencies.handoff_us, found.latencies.pause_us) == pytest.approx((HANDOFF_US, PAUSE_US))
    assert (found.error, found.from_machine) == (None, None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_results_help_and_have_an_error_bar(count: int) -> None:
    results = [result_of(model, TRUTH) for model in MODELS[:count]]
    found = calibrate(H200, results)
    before = fit([], "gpu")
    assert found.error is not None
    assert 0 < found.error < 0.5
    for result in results:
        was_off = abs(predicted_us(result, before) / result.us - 1)
        assert abs(predicted_us(result, found.latencies) / result.us - 1) < was_off


def test_one_result_is_held_against_what_was_known_before_it() -> None:
    [result] = [result_of("smollm2-135m", TRUTH)]
    found = calibrate(H200, [result])
    assert found.error == pytest.approx(abs(predicted_us(result, fit([], "gpu")) / result.us - 1))


def test_results_that_disagree_widen_the_error_bar() -> None:
    steady = calibrate(H200, [result_of(model, TRUTH) for model in MODELS]).error
    wild = calibrate(
        H200, [result_of(model, TRUTH, off=off) for model, off in zip(MODELS, (0.3, -0.2, 0.25, -0.2), strict=True)]
    ).error
    assert steady is not None
    assert wild is not None
    assert wild > max(0.2, 2 * steady)


def test_a_machine_without_results_borrows_those_of_its_kind_and_says_so() -> None:
    results = [result_of(model, TRUTH) for model in MODELS]
    borrowed, own = calibrate(MACHINES["MI300X"], results), calibrate(H200, results)
    assert borrowed.latencies == own.latencies
    assert borrowed.from_machine == "H200"
    assert calibrate(MACHINES["CPU"], results).from_machine is None
    assert measured_ceiling(H200, results) == CEILING
    assert measured_ceiling(MACHINES["MI300X"], results) is None


def test_hand_offs_of_another_machine_are_carried_over_by_what_both_ceilings_found() -> None:
    results = [replace(result_of(model, TRUTH), handoff_us=1.4) for model in MODELS]
    own, other = (calibrate(machine, results, 2.1) for machine in (H200, MACHINES["H100"]))
    assert other.latencies.handoff_us == pytest.approx(1.5 * own.latencies.handoff_us)
    assert (own.carried, other.carried) == (None, pytest.approx(1.5))
    assert own.latencies == calibrate(H200, results).latencies  # its own results know better
    assert calibrate(MACHINES["H100"], [result_of(model, TRUTH) for model in MODELS], 2.1).carried is None


def decode(**changes: Any) -> dict[str, Any]:
    return {
        "benchmark": "decode",
        "model": "llama-3.2-1b",
        "dtype": "bf16",
        "prompt_tokens": 128,
        "tokens": 512,
        "us_per_token": 625.0,
        "ceiling_bytes_per_s": 4.5e12,
        "machine": {"gpu": {"name": "NVIDIA H200"}},
        **changes,
    }


def test_results_are_read_and_what_is_not_one_is_passed_over(tmp_path: Path) -> None:
    points = [{"context": 0, "us_per_token": 600.0}, {"context": 8192, "us_per_token": 760.0}, {"context": "x"}, 7]
    files = {
        "a": decode(),
        "b": decode(benchmark="context", points=points),
        "c": decode(machine={"processor": "Some CPU", "cores": 2}),
        "d": decode(model="nobody-knows-it"),
        "e": decode(us_per_token=float("nan")),
        "f": decode(machine={"gpu": {"name": "NVIDIA GH200 480GB"}}),  # has another memory than an H200
        "g": decode(benchmark="load"),
        "h": ["no", "object"],
        "i": decode(ceiling_bytes_per_s=None),
        "l": decode(dtype="awq"),  # of unknown size
        "m": decode(dtype="awq", bytes_per_token=7e8),
        "n": decode(dtype="q4_k_m"),
        "o": decode(model="qwen3-30b-a3b", routing="skewed"),  # not beside the same with even routing
        "k": decode(benchmark="ceiling", waits=[7, {"what": "hand-off", "streaming_bytes": 0, "us": 1.4}]),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "j.json").write_text("{")
    found = read_results(tmp_path)
    assert [(result.source, result.us, result.machine) for result in found] == [
        ("a.json", 625.0, "H200"),
        ("b.json", 600.0, "H200"),
        ("b.json", 760.0, "H200"),
        ("c.json", 625.0, "Some CPU, 2 cores"),
        ("m.json", 625.0, "H200"),
        ("n.json", 625.0, "H200"),
    ]
    assert sum(step.times * step.weights for step in found[4].work) == pytest.approx(7e8)
    assert sum(step.times * step.weights for step in found[5].work) == pytest.approx(8.1e8, rel=0.01)
    assert found[2].work[0].cache > found[1].work[0].cache == 0
    assert [result.handoff_us for result in found] == [1.4, 1.4, 1.4, None, 1.4, 1.4]
    assert read_results(tmp_path / "nowhere") == []


def test_the_model_stands_by_the_results_of_this_repository() -> None:
    folder = Path(__file__).parents[2] / RESULTS
    found = calibrate(H200, read_results(folder))
    assert {result.model for result in found.results} >= {"llama-3.2-1b", "smollm2-135m", "qwen2.5-coder-1.5b"}
    assert found.error is not None
    assert found.error < 0.3
