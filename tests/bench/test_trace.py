"""The times of a trace add up, and its table, its Chrome trace and its picture show the same times."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.bench.trace import perfetto
from monolane.bench.trace import picture as trace_picture
from monolane.bench.trace.run import Options, measure
from monolane.bench.trace.stamps import Trace, report
from monolane.errors import UsageError
from monolane.model.weights import check_weights
from monolane.program.build import build_program
from monolane.progress import Silent

TOKENS, WORKERS = 2, 3
PROGRAM = build_program(SHAPES["smollm2-135m"])
STAGES = len(PROGRAM.stages)
NO_INPUT_STAMP = ("embed", "attend", "sample")
TINY = replace(  # its kernel is that of test_bench_run.py, too
    SHAPES["qwen3-1.7b"],
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab=300,
    windows=(None,) * 2,
)


def made_up_trace() -> Trace:
    """Every stage takes 1,000 ns, a quarter of it for its input; worker 0 is 100 ns faster than the others."""
    begins = 1_000_000 + 1000 * np.arange((TOKENS + 1) * STAGES).reshape(TOKENS + 1, 1, STAGES, 1)
    stamps = begins + np.array([[0, 250, 1000]] * WORKERS).reshape(1, WORKERS, 1, 3)
    stamps[:, 0, 1:, 0] -= 100  # it comes early to the next stage
    stamps[:, 0, :, 2] -= 100
    for index, stage in enumerate(PROGRAM.stages):
        if stage.name in NO_INPUT_STAMP:
            stamps[:, :, index, 1] = 0
    return Trace("made up", PROGRAM.stages, stamps, 150.0, 3_000_000)


def test_the_table_adds_up() -> None:
    head, columns, *rows, total = report(made_up_trace()).splitlines()
    assert "150.0 µs/token" in head
    assert "20.0 GB/s" in head
    assert columns.split()[0] == "stage"
    assert sum(float(row.split()[3]) for row in rows) == pytest.approx(STAGES)
    assert total.split()[3] == f"{STAGES:.1f}"
    qkv = next(row.split() for row in rows if row.startswith("qkv"))
    assert qkv[1:] == ["30", "1.00", "30.0", "0.28", "0.72", "0.75"]


def test_the_chrome_trace_has_a_track_per_worker_that_is_whole_and_in_order() -> None:
    trace = made_up_trace()
    events = json.loads(perfetto.text(trace))["traceEvents"]
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[named[event["pid"], event["tid"]]].append(event)
    assert set(tracks) == {"tokens", "critical path", "hand-offs", *(f"worker {w}" for w in range(WORKERS))}
    for slices in tracks.values():
        for before, after in pairwise(slices):
            assert before["dur"] >= 0
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    for worker in range(WORKERS):
        slices = tracks[f"worker {worker}"]
        work = [event for event in slices if event["cat"] == "work"]
        assert [event["name"] for event in work] == [stage.name for stage in PROGRAM.stages] * TOKENS
        assert [event["args"]["layer"] for event in work[:3]] == [None, 0, 0]
        assert sum(event["dur"] for event in slices) == pytest.approx(TOKENS * STAGES, abs=1)
    assert {event["cat"] for event in tracks["worker 1"]} == {"wait", "work"}
    assert [event["dur"] for event in tracks["tokens"]] == [STAGES, STAGES]
    assert {event["dur"] for event in tracks["critical path"]} == {1.0}
    assert {event["dur"] for event in tracks["hand-offs"]} == {0.25}
    assert "o → gate_up" in {event["name"] for event in tracks["hand-offs"]}


def test_the_picture_shows_every_stage_and_every_worker_of_a_layer() -> None:
    picture = ElementTree.fromstring(trace_picture.text(made_up_trace()))
    space = {"svg": "http://www.w3.org/2000/svg"}
    words = [text.text or "" for text in picture.iterfind("svg:text", space)]
    for stage in PROGRAM.stages:
        assert stage.name in words
    shapes = {path.findtext("svg:title", "", space): path.get("d", "") for path in picture.iterfind("svg:path", space)}
    for name in ("qkv", "attend", "o", "gate_up", "down"):
        for doing in ("waits", "works"):
            assert shapes[f"{name}: {doing}"].count("z") == WORKERS
    height = float(picture.get("height", ""))
    for text in picture.iterfind("svg:text", space):
        assert 0 < float(text.get("y", "")) < height


def test_a_cpu_worker_has_its_input_when_all_have_ended_the_stage_before() -> None:
    trace = measure("tiny", TINY, MadeUpWeights(TINY), Options(3, "cpu", 2, None, None), Silent())
    assert trace.stamps.shape == (4, 2, 2 * 5 + 3, 3)
    began, ready, ended = (when.transpose(1, 0, 2).reshape(2, -1) for when in (trace.began, trace.ready, trace.ended))
    assert (began <= ready).all()
    assert (ready <= ended).all()
    assert (began[:, 1:] == ended[:, :-1]).all()
    assert (ready[:, 1:] >= ended.max(0)[:-1]).all()
    assert trace.critical.sum() > 0


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    for tokens, out, picture in (
        (0, None, None),
        (1_000_000, None, None),
        (1, tmp_path / "trace.txt", None),
        (1, None, tmp_path / "trace.png"),
        (1, tmp_path / "nowhere" / "trace.json", None),
    ):
        with pytest.raises(UsageError):
            Options(tokens, "cpu", 1, out, picture)
    weights = MadeUpWeights(TINY)
    with pytest.raises(UsageError, match="time stamps"):
        measure("tiny", TINY, weights, Options(1, "interpreter", 1, None, None), Silent())
    with pytest.raises(UsageError, match="context of 100"):
        measure("tiny", replace(TINY, context=100), weights, Options(1, "cpu", 1, None, None), Silent())


def test_made_up_weights_fit_their_shapes() -> None:
    for config in SHAPES.values():
        weights = MadeUpWeights(config)
        check_weights(config, weights)
        name, ffn = ("layers.0.experts.down", config.experts.ffn) if config.experts else ("layers.0.down", config.ffn)
        rows = weights.rows(name, 3, 5)
        assert rows.shape == (2, ffn)
        np.testing.assert_array_equal(rows[0], weights.rows(name, 3, 4)[0])
