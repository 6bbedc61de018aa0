"""The starts of a model are timed in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_checkpoint import small

from monolane.bench.measure import anonymous_memory, checkpoint, load, shapes
from monolane.bench.measure.anonymous_memory import AnonymousPeak, anonymous_bytes
from monolane.bench.measure.mixtures import made_up, published
from monolane.bench.report import schema
from monolane.model.load import load_model
from monolane.target import plan_for


def test_two_starts_are_timed_and_the_second_finds_the_first_ones_cache(tmp_path: Path) -> None:
    """The tape of a bf16 model is not kept; then the second start packs it again, and what is said is so."""
    config = small("llama-3.2-1b")
    checkpoint.write(config, made_up(config, None), tmp_path)
    said: list[str] = []
    found = load.starts(load_model(tmp_path), "interpreter", said.append)
    for start in (found["first"], found["second"]):
        assert 0 < start["load_s"] <= start["first_token_s"]
        assert start["tape_bytes"] > 0
        assert 0 < start["peak_anonymous_bytes"] < start["peak_bytes"]
    assert found["peak_over_tape"] > 1
    assert not found["tape_kept"]
    assert "no tape was kept" in said[1]


def test_a_shape_with_experts_is_written_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("gpt-oss-120b")
    monkeypatch.setitem(shapes.SHAPES, "gpt-oss-120b", config)
    said: list[str] = []
    load.run(None, "gpt-oss-120b", "interpreter", tmp_path, said.append)
    result = json.loads((tmp_path / "load-gpt-oss-120b-interpreter.json").read_text())
    assert schema.problems(result) == []
    assert result["dtype"] == "mxfp4+bf16"
    assert said[1].startswith("written: ")
    plan = plan_for(config, workers=1, formats=made_up(config, published(config)).format)
    assert result["first"]["tape_bytes"] == plan.resident_bytes > plan.bytes_per_token  # of all experts
    assert result["tape_kept"] == ("no tape was kept" not in said[3])


def test_memory_that_is_in_use_for_a_while_is_counted() -> None:
    """In a process of its own: here, other tests leave memory that is freed while this one looks."""
    if anonymous_bytes() is None:
        pytest.skip("this system does not say")
    said = subprocess.run([sys.executable, "-c", USES_MEMORY], check=True, capture_output=True, text=True).stdout
    before, used, most = json.loads(said)
    assert before + used <= most < before + 2 * used


USES_MEMORY = """
import json, time
import numpy as np
from monolane.bench.measure.anonymous_memory import AnonymousPeak, anonymous_bytes

before, used, deadline = anonymous_bytes(), 100_000_000, time.monotonic() + 60
with AnonymousPeak() as peak:
    memory = np.ones(used, np.uint8)
    while (peak.bytes or 0) < before + used and time.monotonic() < deadline:
        time.sleep(0.01)
    del memory
print(json.dumps([before, used, peak.bytes]))
"""


def test_a_system_that_does_not_tell_its_memory_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(anonymous_memory, "_PROCESSES", tmp_path / "missing")
    with AnonymousPeak() as unknown:
        pass
    assert unknown.bytes is None
