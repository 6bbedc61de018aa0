"""Benchmarks measure what they say, and results say where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import GgufModel

from monolane.bench.ceiling import read_cpu as ceiling
from monolane.bench.peers.widen import bf16_twin
from monolane.bench.report import record
from monolane.model.gguf_weights import open_gguf
from monolane.model.weights import expected_shapes


def test_the_ceiling_is_measured_over_the_whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "BUFFER_BYTES", 4 << 20)
    reader = ceiling.ReadCeiling(1)
    assert reader.measure() > 0
    assert reader.buffers.sink[0] % 2**64 == (4 << 20) // 8 * 0x0101010101010101 % 2**64


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


def test_another_file_of_the_same_name_has_a_twin_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    twins = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        GgufModel("llama", gguf.GGMLQuantizationType.Q8_0).write(tmp_path / folder / "tiny.gguf")
        twins.add(bf16_twin(tmp_path / folder / "tiny.gguf"))
    assert len(twins) == 2


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/x/bin/monolane", "ceiling", "--out", "here.json", "--json"], "monolane ceiling --json"),
        (["/x/bench/ceiling/__main__.py", "--picture", "p.svg"], "python -m monolane.bench.ceiling"),
        (["/x/bench/__main__.py", "load", "a model"], "python -m monolane.bench load 'a model'"),
    ],
)
def test_a_command_says_how_to_measure_again_and_not_where_files_went(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", words)
    assert record.command() == said


def test_a_result_may_bring_its_command_along(tmp_path: Path) -> None:
    assert json.loads(record.write("x", {"command": "monolane bench m"}, tmp_path).read_text())["command"] == (
        "monolane bench m"
    )
