"""The experiment: its models are comparable, finished runs are kept, and the report shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_training import SHAPE, prepared

from monolane.errors import UsageError
from monolane.train import experiment, presets
from monolane.train.__main__ import main
from monolane.train.laneformer import Laneformer

TOKENS = 1500  # three steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("experiment"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPE | {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4}
    monkeypatch.setitem(presets.PRESETS, experiment.SHAPE, shape)


ROOT = Path(__file__).parents[2]


def run(data: Path, out: Path, *options: str, tokens: int = TOKENS) -> int:
    command = ["experiment", "--device", "cpu", "--data", str(data), "--out", str(out), "--tokens", str(tokens)]
    return main([*command, *options])


def test_all_models_have_the_same_parameters() -> None:
    counts = set()
    for recipe in experiment.models(150_000_000).values():
        with torch.device("meta"):
            model = Laneformer(recipe.shape, recipe.ladder)
        counts.add(sum(parameter.numel() for parameter in model.parameters()))
    (count,) = counts
    assert 25e6 < count < 50e6


def test_every_model_with_every_seed() -> None:
    runs = [(recipe.model, recipe.seed) for recipe in experiment.chosen(1000, 2, "")]
    names = [name for name, seed in runs if seed == 0]
    assert names == ["plain", "ladder", *(f"dtp-{lanes}-lanes-delay-{d}" for lanes in (4, 8) for d in (1, 2, 4))]
    assert runs == [(name, seed) for seed in (0, 1) for name in names]


@pytest.mark.usefixtures("small")
def test_it_goes_on_where_it_was_interrupted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    chosen = ("--only", "plain,dtp-8-lanes-delay-2", "--seeds", "1")
    assert run(folder, out, *chosen, "--minutes", "0") == 0  # one step
    assert "time is up" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["plain-seed-0.safetensors"]
    assert run(folder, out, *chosen) == 0
    assert "all runs are finished" in capsys.readouterr().err
    results = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert set(results) == {"plain-seed-0.json", "dtp-8-lanes-delay-2-seed-0.json"}
    assert all(result["finished"] and result["validation_loss"] > 0 for result in results.values())
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(folder, out, *chosen) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert run(folder, out, *chosen, tokens=2 * TOKENS) == 2
    assert "another number of tokens" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_what_it_refuses(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, tmp_path, tokens=10**9) == 2
    assert "more than 2 passes" in capsys.readouterr().err
    assert run(folder, tmp_path, "--only", "plan") == 2
    assert "plain, ladder" in capsys.readouterr().err
    with pytest.raises(UsageError, match="seed"):
        experiment.chosen(1000, 0, "")


def written(folder: Path, name: str, seed: int, delay: int, loss: float, finished: bool = True) -> None:
    result = {
        "model": name,
        "ladder": name == "ladder",
        "config": {"num_lanes": 4, "broadcast_delay": delay},
        "finished": finished,
        "validation_loss": loss,
        "tokens_per_second": 1_000_000,
    }
    (folder / f"{name}-seed-{seed}.json").write_text(json.dumps(result))


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "dtp-4-lanes-delay-2", 0, 2, 1.53)
    written(tmp_path, "ladder", 0, 0, 1.515)
    written(tmp_path, "plain", 0, 0, 1.49)
    written(tmp_path, "plain", 1, 0, 1.51)
    written(tmp_path, "dtp-4-lanes-delay-4", 0, 4, 9.0, finished=False)
    assert main(["report", str(tmp_path), "--picture", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| plain | 0 | 1.5000 | 0.0100 (2) | +0.00% | 1,000 |"
    assert lines[3].startswith("| ladder | 1 | 1.5150 | one seed | +1.00% |")
    assert lines[4].startswith("| dtp-4-lanes-delay-2 | 4 | 1.5300 | one seed | +2.00% |")
    assert len(lines) == 5
    point = {"delay": 0, "us_per_token": 700.4, "exposed_us": 90.2}
    (tmp_path / "times.json").write_text(json.dumps({"benchmark": "delays", "lanes": 8, "points": [point]}))
    options = ["--times", str(tmp_path / "times.json"), "--picture", str(tmp_path / "out.png")]
    assert main(["report", str(tmp_path), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| µs per token at the 2B shape | of that exposed exchange |")
    assert lines[2].endswith("| 700 | 90 |")
    assert lines[3].endswith("|  |  |")
    (tmp_path / "times.json").write_text("{}")
    assert main(["report", str(tmp_path), *options]) == 2
    assert "monolane.bench delays" in capsys.readouterr().err


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "has no results" in capsys.readouterr().err


def test_the_page_has_the_table_of_the_kept_runs(capsys: pytest.CaptureFixture[str]) -> None:
    times = ROOT / "benchmarks/results/delays-laneformer-2b-apart.json"
    assert main(["report", str(ROOT / "benchmarks/train/experiment"), "--times", str(times)]) == 0
    assert capsys.readouterr().out.strip() in (ROOT / "docs/train.md").read_text()
