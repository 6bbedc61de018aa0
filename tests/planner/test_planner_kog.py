"""The published speeds: the formula reproduces them from the implied bytes, and a contradiction is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_plans import result_of

from monolane.bench.report.record import RESULTS
from monolane.planner import kog, kog_report
from monolane.planner.calibration import Result, read_results
from monolane.planner.latency import Latencies


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return read_results(Path(__file__).parents[2] / RESULTS)


def test_the_formula_is_the_published_one() -> None:
    """3 B weights of 8 bits: the row that its makers explain."""
    assert kog.formula(3e9, "H200") == pytest.approx(3650, rel=0.01)
    assert kog.formula(3e9, "MI300X") == pytest.approx(4000, rel=0.01)


def test_implied_bytes_are_the_way_back(results: list[Result]) -> None:
    for model in kog.comparisons(results):
        for one in model:
            assert kog.formula(one.implied_bytes, one.node) == pytest.approx(one.speed)


def test_bytes_of_gpt_oss_are_those_its_projection_was_made_with(results: list[Result]) -> None:
    for one in next(rows for rows in kog.comparisons(results) if rows[0].published.model == "gpt-oss-120b"):
        assert one.active_bytes == pytest.approx(one.implied_bytes, rel=0.02)


def test_the_source_that_contradicts_itself_is_flagged_and_judged(results: list[Result]) -> None:
    flagged = [rows for rows in kog.comparisons(results) if kog.verdict(rows) is not None]
    [kimi] = flagged
    assert kimi[0].published.model == "kimi-k2.6"
    found = kog.verdict(kimi)
    assert found is not None
    assert found.config_supports == (325, 355)
    assert found.by_config == pytest.approx((325, 355), rel=0.05)
    assert found.format_supports == (800,)
    said = kog_report.explain(kimi)
    assert "CONTRADICTION" in said
    assert "supports 325 / 355" in said


def test_the_table_has_every_number_and_explains_every_model(results: list[Result]) -> None:
    text = kog_report.text(results)
    assert max(map(len, text.splitlines())) <= 100
    for model in kog.comparisons(results):
        assert text.count(f"{model[0].ours.model.name}: ") == 1
        for one in model:
            [line] = [
                line
                for line in text.splitlines()
                if line.startswith(f"{one.ours.model.name} ") and f"8x{one.node} " in line
            ]
            for number in (one.speed, one.formula, one.ours.tokens_per_s):
                assert f" {number:,.0f} " in line
            assert one.ours.time.binds in line
    assert text.count("CONTRADICTION") == 1
    assert "latencies of MI300X (taken from H200)" in " ".join(text.split())


def test_what_one_gpu_measured_stands_beside_the_others() -> None:
    """Of the weights as they are published, on that machine; context sweeps are something else."""
    truth = Latencies(1.5, 0.4, 1.0, 1.0, 2.5, 6.0)
    measured = result_of("gpt-oss-120b", truth, weights="mxfp4+bf16")
    others = [
        result_of("gpt-oss-120b", truth, weights="mxfp4+q8"),
        result_of("gpt-oss-120b", truth, weights="mxfp4+bf16", on="B200"),
        replace(measured, source="context-gpt-oss-120b.json", us=1.0),
    ]
    for results, shown in (([measured, *others], f"{1e6 / measured.us:,.0f}"), (others, "-")):
        rows = [line.split() for line in kog_report.text(results).splitlines() if line.startswith("gpt-oss-120b  ")]
        assert [(row[1], row[-1]) for row in rows] == [("8xH200", shown), ("8xMI300X", "-")]


def test_explanations_follow_from_the_terms() -> None:
    """With hand-offs that take hardly any time ours is above the formula where lanes need not wait; else below."""
    quick, slow = (
        kog.comparisons(
            [result_of(name, Latencies(us, 0.5, 1.0, 1.0, 3.0, us)) for name in ("llama-3.2-1b", "smollm2-135m")]
        )
        for us in (0.2, 20.0)
    )
    assert "ours is above the formula" in kog_report.explain(quick[0])
    for rows in slow:
        said = kog_report.explain(rows)
        for one in rows:
            numbers = f"({one.ours.tokens_per_s:,.0f} against {one.formula:,.0f})"
            assert f"On {one.node} ours is below the formula {numbers}" in said
        assert rows[0].ours.time.binds == "hand-offs"
