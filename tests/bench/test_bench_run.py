"""Whole benchmark runs of a tiny model on this CPU: which files are written, and what is shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from monolane import cli
from monolane.bench import __main__ as front
from monolane.bench.ceiling import read_cpu as ceiling
from monolane.bench.measure import accuracy, timing
from monolane.bench.measure import run as measure_run
from monolane.bench.measure.shapes import SHAPES
from monolane.bench.report import picture, record, schema, tables
from monolane.errors import TargetError, UsageError
from monolane.model.config import Experts

EVERYWHERE = {"benchmark", "model", "dtype", "device", "accuracy", "machine", "versions", "command", "method"}
DECODE = EVERYWHERE | {
    "context", "us_per_token", "us_per_token_device", "sampled_us_per_token", "sampled_us_per_token_device",
    "logprobs_us_per_token", "logprobs_us_per_token_device", "token_gaps_us", "first_token_ms", "throughput",
    "energy_j_per_token", "bytes_per_token", "ceiling_bytes_per_s", "fraction_of_ceiling", "nominal_bytes_per_s",
    "fraction_of_nominal", "peers", "peers_skipped", "rounds",
}  # fmt: skip
RUN = ("--shape", "tiny", "--device", "cpu", "--workers", "1", "--rounds", "1", "--tokens", "8")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shape = replace(SHAPES["qwen3-1.7b"], hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=300,
                    windows=(None,) * 2, context=4096)  # fmt: skip
    monkeypatch.setitem(SHAPES, "tiny", shape)
    monkeypatch.setattr(ceiling, "BUFFER_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)
    ticks = count()  # every wait is longer than the one before: a difference is never lost in noise
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(ticks) ** 2))


def results(folder: Path) -> dict[str, Any]:
    found = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    assert [schema.problems(result) for result in found.values()] == [[]] * len(found)
    return found


def in_front(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    return front.main()


def test_one_run_writes_every_result_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run", *RUN, "--context", "0,300", "--peers", "vllm,sglang", "--out", "out", "--picture", "bench.png")
    assert in_front(monkeypatch, *asked) == 0
    out, err = capsys.readouterr()
    found = results(tmp_path / "out")
    assert list(found) == ["context-tiny-cpu.json", "decode-tiny-cpu.json", "stages-tiny-cpu.json"]
    assert all(result.keys() >= EVERYWHERE for result in found.values())
    decode = found["decode-tiny-cpu.json"]
    assert decode.keys() >= DECODE
    assert decode["accuracy"]["verdict"] == "passed"
    assert decode["peers_skipped"].keys() == {"vllm", "sglang"}
    assert decode["weights"] == "made up"
    assert decode["command"].startswith("monolane bench --shape tiny --device cpu")
    assert [point["context"] for point in found["context-tiny-cpu.json"]["points"]] == [0, 300]
    assert sum(found["stages-tiny-cpu.json"]["stages_us"].values()) == pytest.approx(
        found["stages-tiny-cpu.json"]["us_per_token_traced"]
    )
    assert err.index("accuracy: ") < err.index("round 1/1") < err.index("written: ") < err.index("contexts, round 1/1")
    for words in ("of the measured ceiling", "throughput", "first token", "vllm", "gate_up"):
        assert words in out
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "| tiny bf16 |" in tables.table(tables.results(tmp_path / "out"))


def test_contexts_of_several_shapes_are_measured_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "short", replace(SHAPES["tiny"], context=512))
    asked = ("contexts", "--shape", "tiny,short", "--device", "cpu", "--rounds", "1", "--tokens", "8", "--out", "out")
    assert in_front(monkeypatch, *asked, "--context", "0,256,1k") == 0
    out, err = capsys.readouterr()
    found = results(tmp_path / "out")
    assert list(found) == ["context-short-cpu.json", "context-tiny-cpu.json"]
    assert all(result.keys() >= EVERYWHERE for result in found.values())
    points = {name: [point["context"] for point in result["points"]] for name, result in found.items()}
    assert points == {"context-short-cpu.json": [0, 256], "context-tiny-cpu.json": [0, 256, 1024]}
    assert "short: a context of 1,024 is left out: the model was made for 512 tokens" in err
    assert out.index("tiny bf16") < out.index("short bf16") < out.index("left out")
    assert found["context-tiny-cpu.json"]["command"].startswith("python -m monolane.bench contexts --shape tiny,short")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--shape", "tiny,nosuch"), "no shape 'nosuch'"),
        (("--shape", "tiny", "--context", "8k"), "made for 4096"),
        (("--shape", "tiny", "--context", ""), "No context"),
        ((), "not clear"),
    ],
)
def test_mistakes_about_contexts_are_told_before_anything_runs(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert in_front(monkeypatch, "contexts", *words, "--out", "out") == UsageError.exit_code
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_results_can_be_drawn_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "context-llama-3.2-1b-cuda.json"  # a real one
    (tmp_path / name).write_text((Path(__file__).parents[2] / record.RESULTS / name).read_text())
    asked = ("draw", "llama-3.2-1b", "--results", str(tmp_path), "--picture", "later.png")
    assert in_front(monkeypatch, *asked) == 0
    assert (tmp_path / "later.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing_or_without_matplotlib_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {"benchmark": "stages", "stages_us": {"qkv": 1.0}, "predicted_us": None, "model": "m"}
    assert "neither was measured" in picture.draw([{"benchmark": "decode"}], Path("x.png"))
    monkeypatch.setattr(picture, "find_spec", lambda _: None)
    assert "matplotlib is not installed" in picture.draw([stages], Path("x.png"))
    assert not Path("x.png").exists()


def test_the_command_line_asks_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["monolane", "bench", *RUN, "--peers", "none", "--json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert [result["benchmark"] for result in shown] == ["decode", "stages"]
    written = results(tmp_path / "benchmarks" / "results")
    assert written["decode-tiny-cpu.json"] == shown[0]
    assert (tmp_path / "bench.png").exists()


def test_results_of_other_weights_and_lanes_are_kept_side_by_side() -> None:
    options = measure_run.Options(shape="tiny")
    lanes = replace(options, lanes=2)
    asked = (options, replace(options, weights="q8"), lanes, replace(lanes, placement="apart"))
    names = [each.place("tiny", "cpu") for each in asked]
    assert names == ["tiny-cpu", "tiny-q8-cpu", "tiny-2-lanes-cpu", "tiny-2-lanes-apart-cpu"]


def test_a_shape_with_experts_has_a_row_for_each_routing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experts = Experts(8, 2, 32, (True, True), normalised=True)
    monkeypatch.setitem(SHAPES, "mixture", replace(SHAPES["tiny"], family="qwen3_moe", experts=experts, tied=False))
    asked = ("run", *RUN, "--peers", "none", "--out", "out")
    assert in_front(monkeypatch, *asked, "--routing", "skewed") == UsageError.exit_code  # a shape without experts
    for words in ((), ("--routing", "skewed")):
        assert in_front(monkeypatch, *asked, "--shape", "mixture", *words) == 0
    assert "routing               skewed: two tokens have" in capsys.readouterr().out
    found = results(tmp_path / "out")
    assert [name for name in found if name.startswith("decode")] == [
        "decode-mixture-cpu.json",
        "decode-mixture-skewed-cpu.json",
    ]
    even, skewed = (found[f"decode-mixture-{kind}cpu.json"] for kind in ("", "skewed-"))
    assert (even["routing"], skewed["routing"]) == ("even", "skewed")
    assert even["shared_experts_if_even"] == 0.5
    assert even["shared_experts"] < skewed["shared_experts"]
    assert "--routing skewed" in skewed["command"]
    table = tables.table(tables.results(tmp_path / "out"))
    assert "| mixture bf16 |" in table
    assert "| mixture bf16, skewed routing |" in table


def test_a_workflow_is_run_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run", *RUN, "--workflow", "600", "--context", "2k", "--out", "out")
    assert in_front(monkeypatch, *asked) == 0
    found = results(tmp_path / "out")["workflow-tiny-cpu.json"]
    assert found.keys() >= EVERYWHERE
    assert found["tokens"] == 600
    assert found["cached_tokens"] > 0
    assert "at 100 tok/s" in capsys.readouterr().out
    assert in_front(monkeypatch, "run", *RUN, "--workflow", "600", "--context", "1k") == UsageError.exit_code
    assert "Conversations of 1024 tokens are not possible" in capsys.readouterr().err


def test_loads_are_timed_from_a_folder_of_made_up_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_front(monkeypatch, "load", "--shape", "tiny", "--device", "interpreter", "--out", "out") == 0
    found = results(tmp_path / "out")["load-tiny-interpreter.json"]
    assert found["device"] == "interpreter"
    assert found["second"]["first_token_s"] >= found["second"]["load_s"] > 0
    for wrong in (("--shape", "tiny", "--device", "tpu"), ()):
        assert in_front(monkeypatch, "load", *wrong) == UsageError.exit_code


def test_without_a_passed_verdict_there_are_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accuracy, "ALLOWED", 1e-12)
    monkeypatch.setattr(accuracy, "NOISE", 0.0)
    assert in_front(monkeypatch, "run", *RUN, "--peers", "none", "--out", "out") == TargetError.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert "its speed means nothing" in err
    assert "µs" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--shape", "nosuch"), "no shape 'nosuch'"),
        (("--shape", "tiny", "--context", "8k"), "made for 4096"),
        (("--shape", "tiny", "--context", "x"), "--context has 'x'"),
        (("--shape", "tiny", "--peers", "x"), "no peer 'x'"),
        (("--shape", "tiny", "--device", "tpu"), "no device 'tpu'"),
        ((), "not clear"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert in_front(monkeypatch, "run", *words, "--out", "out") == UsageError.exit_code
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
