"""A whole run on a GPU, of a model that is small enough to be quick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from monolane.bench.measure.run import Options, run
from monolane.bench.measure.shapes import SHAPES
from monolane.bench.report import schema
from monolane.progress import Silent
from monolane.target.cuda.opening import find_gpu


@pytest.mark.gpu
@pytest.mark.skipif(find_gpu() is None, reason="needs an NVIDIA GPU that the kernel runs on")
def test_a_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SHAPES["llama-3.2-1b"], layers=2, windows=(None, 100), vocab=5003, context=4096)
    monkeypatch.setitem(SHAPES, "small", shape)
    options = Options(shape="small", device="cuda", contexts=(0, 2048), rounds=1, out=tmp_path)
    decode, context, stages = run(options, Silent(), print)
    assert not [wrong for result in (decode, context, stages) for wrong in schema.problems(result)]
    assert decode["accuracy"]["verdict"] == "passed"
    assert decode["machine"]["gpu"]["name"]
    assert min(decode[clock] for clock in ("us_per_token", "us_per_token_device")) > 0
    assert decode["nominal_bytes_per_s"] is None or decode["nominal_bytes_per_s"] > decode["ceiling_bytes_per_s"]
    assert [point["context"] for point in context["points"]] == [0, 2048]
    assert stages["predicted_us"].keys() == stages["stages_us"].keys()
