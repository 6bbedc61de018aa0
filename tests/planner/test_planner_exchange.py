"""Exchanges between lanes: what ``monolane ceiling`` measured inside one GPU, and what is assumed of the wire."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_plans import CEILING, result_of, several

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges, of_result
from monolane.planner import report
from monolane.planner.calibration import read_results
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.exchange import exchange_time
from monolane.planner.latency import Lanes, Latencies, steps, token_time
from monolane.planner.machines import MACHINES
from monolane.planner.precision import named
from monolane.planner.prediction import Ceiling, predict
from monolane.planner.source import from_entry

H200, MODEL = MACHINES["H200"], from_entry(CATALOGUE["laneformer-2b"])  # of 3,072 values
TRUTH = Latencies(handoff_us=2.0, leak=0.5, efficiency=1.0, cache_efficiency=1.0, unpacking=8.0, router_us=3.0)


def exchange(lanes: int, values: int, own_us: float, **changes: Any) -> dict[str, Any]:
    return {"lanes": lanes, "workers": 16, "values": values, "streaming_bytes": 0, "own_us": own_us, **changes}


RESULT = {
    "exchanges": [
        exchange(8, 3072, 1.2),
        exchange(8, 1024, 0.8),
        exchange(2, 1024, 0.5),
        exchange(8, 3072, 9.9, streaming_bytes=32768),
    ]
}
MEASURED = of_result(RESULT)


def test_times_between_measured_sizes_are_interpolated_and_none_is_made_up() -> None:
    assert MEASURED is not None
    assert MEASURED.own_us(8, 3072) == 1.2  # while memory is idle
    assert MEASURED.own_us(8, 2048) == pytest.approx(1.0)
    assert MEASURED.own_us(8, 1) == 0.8
    assert MEASURED.own_us(3, 1024) == 0.8  # as among 8
    assert MEASURED.own_us(2, 512) == 0.5
    assert MEASURED.own_us(2, 1025) is None
    assert MEASURED.own_us(16, 1024) is None


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"exchanges": 7},
        {"exchanges": [7, {}, exchange(8, 1024, 0.0), exchange(8, 1024, float("nan"))]},
        {"exchanges": [exchange(True, 1024, 1.0), exchange(8, 0, 1.0), exchange(8, 64, 1.0) | {"own_us": "1"}]},
    ],
)
def test_a_file_without_usable_exchanges_has_none(result: dict[str, Any]) -> None:
    assert of_result(result) is None


def test_an_exchange_is_the_measured_one_the_wire_and_the_hand_off() -> None:
    found = exchange_time(H200, 8, 3072, MEASURED, 2.0)
    assert H200.wire is not None
    assert found.us == pytest.approx(1.2 + H200.wire.latency_us + 7 * 3072 * 8 / 450e3 + 2.0)
    assert found.measured
    assert "1.20 µs measured between lanes of one GPU" in found.source
    assert "assumed: 0.7 µs more for the way through NVLink" in found.source


@pytest.mark.parametrize(("machine", "lanes"), [("H200", 16), ("RTX 4090", 8)])
def test_without_a_measurement_that_fits_the_assumption_stands(machine: str, lanes: int) -> None:
    found = exchange_time(MACHINES[machine], lanes, 3072, MEASURED, 2.0)
    assert found.us == MACHINES[machine].exchange_us
    assert not found.measured


def test_a_plan_takes_the_exchanges_of_the_results_and_says_so() -> None:
    results = [result_of("llama-3.2-1b", TRUTH)]
    before = predict(MODEL, several(8, H200), results, dtype="bf16")
    assert before.lanes.exchange_us == H200.exchange_us
    assert "none has been measured" in report.text(before)
    after = predict(MODEL, several(8, H200), [replace(results[0], exchanges=MEASURED)], dtype="bf16")
    assert after.lanes.exchange_us == after.exchange.us != before.exchange.us
    said = " ".join(report.text(after).split())
    assert "measured between lanes of one GPU (3,072 values)" in said
    assert "measured inside one GPU alone" in said
    assert report.as_json(after)["exchange_source"] == after.exchange.source
    alone = predict(MODEL, several(1, H200), [replace(results[0], exchanges=MEASURED)], dtype="bf16")
    assert "exchange" not in report.text(alone)


def test_lanes_that_were_measured_on_one_gpu_give_several_an_error_bar(tmp_path: Path) -> None:
    """As many µs as their times differ from the prediction, for as many exchanges, and what the wire may add."""
    machine = {"machine": {"gpu": {"name": "NVIDIA H200"}}, "ceiling_bytes_per_s": CEILING}
    decode = {"benchmark": "decode", "model": "llama-3.2-1b", "dtype": "bf16", "prompt_tokens": 128, "tokens": 512}
    (tmp_path / "decode.json").write_text(json.dumps({**machine, **decode, "us_per_token": 600.0}))
    (tmp_path / "ceiling.json").write_text(json.dumps({**machine, "benchmark": "ceiling", **RESULT}))
    before = predict(MODEL, several(8, H200), read_results(tmp_path), dtype="bf16")
    assert before.error is None
    known = before.calibration.latencies
    points = []
    for delay in (0, 2):
        work = steps(MODEL.shape, named("bf16"), 128, Lanes(8, delay=2 * delay))
        us = token_time(work, CEILING / 8, known, 1.2 + known.handoff_us).us
        points.append({"delay": delay, "us_per_token": us + 62.0})
    delays = {"benchmark": "delays", "model": "laneformer-2b", "lanes": 8, "tokens": 256, "points": [*points, 7, {}]}
    for placement, widened in (("together", False), ("apart", True)):
        (tmp_path / "delays.json").write_text(json.dumps({**machine, **delays, "placement": placement}))
        found = predict(MODEL, several(8, H200), read_results(tmp_path), dtype="bf16")
        assert found.time == before.time
        assert (found.error is not None) == widened
    assert found.lanes_error is not None
    assert found.lanes_error.unexplained_us == pytest.approx(62.0, abs=0.1)
    assert found.error is not None
    assert found.error > 62.0 / found.time.us
    assert found.tokens_per_s_range is not None
    low, high = found.tokens_per_s_range
    assert low < found.tokens_per_s < high <= 1e6 / found.roofline_us(CEILING)
    assert "62 µs that lanes on one GPU took more or less" in " ".join(report.text(found).split())
    assert predict(MODEL, several(16, H200), read_results(tmp_path), dtype="bf16").error is None


def test_the_exchanges_of_this_machine_come_before_those_of_the_results() -> None:
    results = [replace(result_of("llama-3.2-1b", TRUTH), exchanges=MEASURED)]
    own = MeasuredExchanges(((8, 4096, 5.0),))
    plan = predict(MODEL, several(8, H200), results, dtype="bf16", measured=Ceiling(4.5e12, "here", exchanges=own))
    assert "5.00 µs measured" in plan.exchange.source
    plan = predict(MODEL, several(8, H200), results, dtype="bf16", measured=Ceiling(4.5e12, "here"))
    assert "1.20 µs measured" in plan.exchange.source


def test_exchanges_are_read_from_the_ceiling_in_the_folder_of_results(tmp_path: Path) -> None:
    machine = {"machine": {"gpu": {"name": "NVIDIA H200"}}, "ceiling_bytes_per_s": 4.5e12}
    decode = {"benchmark": "decode", "model": "llama-3.2-1b", "dtype": "bf16", "prompt_tokens": 128, "tokens": 512}
    (tmp_path / "decode.json").write_text(json.dumps({**machine, **decode, "us_per_token": 600.0}))
    (tmp_path / "ceiling.json").write_text(json.dumps({**machine, "benchmark": "ceiling", **RESULT}))
    assert [result.exchanges for result in read_results(tmp_path)] == [MEASURED]
