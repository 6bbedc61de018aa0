"""Benchmarks measure what they say, and the README shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import GgufModel

from monolane.bench import ceiling, record, report
from monolane.bench.widen import bf16_twin
from monolane.model.gguf_weights import open_gguf
from monolane.model.weights import expected_shapes

ROOT = Path(__file__).parents[2]


def decode_result(**changes: Any) -> dict[str, Any]:
    return {
        "benchmark": "decode",
        "model": "m",
        "dtype": "bf16",
        "device": "cpu",
        "machine": {"processor": "P"},
        "us_per_token": 2000.0,
        "tokens_per_second": 500.0,
        "bytes_per_token": 20_000_000,
        "ceiling_bytes_per_s": 12.5e9,
        "fraction_of_ceiling": 0.8,
        "peers": {"llama.cpp, bf16": {"us_per_token": 4000.0}},
        **changes,
    }


def test_the_readme_shows_the_results_under_benchmarks() -> None:
    text = (ROOT / "README.md").read_text()
    shown = text.split(report.BEGIN)[1].split(report.END)[0].strip()
    assert shown == report.table(report.results(ROOT / record.RESULTS)), "run: make report"


def test_every_result_says_where_it_comes_from() -> None:
    for path in (ROOT / record.RESULTS).glob("*.json"):
        result = json.loads(path.read_text())
        assert result.keys() >= {"benchmark", "model", "machine", "versions", "method", "command"}, path
        if result["benchmark"] == "decode":
            assert result.keys() >= decode_result().keys() | {"context", "rounds"}, path


def test_a_table_row_has_speed_bytes_ceiling_and_peers() -> None:
    row = report.table([decode_result()]).splitlines()[2]
    for cell in ("2,000", "500.0", "20", "12.5 GB/s", "80%", "250.0 tok/s", "not measured"):
        assert f" {cell} |" in row


def test_only_the_part_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.fill(page, "new")
    assert page.read_text() == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    assert not report.fill(page, "new")


def test_the_ceiling_is_measured_over_the_whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "BUFFER_BYTES", 4 << 20)
    reader = ceiling.ReadCeiling(1)
    assert reader.measure() > 0
    assert reader._sink[0] % 2**64 == (4 << 20) // 8 * 0x0101010101010101 % 2**64


def test_the_bf16_twin_of_a_file_is_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    original = tmp_path / "tiny.gguf"
    GgufModel("llama", gguf.GGMLQuantizationType.Q8_0).write(original)
    twin = bf16_twin(original)
    config, weights, metadata = open_gguf(original)
    twin_config, twin_weights, twin_metadata = open_gguf(twin)
    assert twin_config == config
    assert set(metadata) <= set(twin_metadata)
    for name, shape in expected_shapes(config):
        if len(shape) == 2:
            np.testing.assert_array_equal(twin_weights.rows(name, 0, shape[0]), weights.rows(name, 0, shape[0]))
    assert bf16_twin(original) == twin


def test_a_result_names_machine_versions_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = record.write(
        "decode-A model", {"machine": record.machine(), "versions": record.versions("numpy", "no-such")}
    )
    assert path.name == "decode-a-model.json"
    written = json.loads(path.read_text())
    assert written["versions"]["numpy"]
    assert written["versions"]["no-such"] is None
    assert written["machine"]["cores"] >= 1
    assert written["command"].startswith("python -m monolane.bench")
