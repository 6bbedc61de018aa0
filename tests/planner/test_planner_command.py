"""``monolane plan`` as a user sees it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monolane import cli
from monolane.bench.ceiling import store as ceiling_store
from monolane.bench.measure.mixtures import MIXTURES, MXFP4, MXFP4_Q8, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.bench.report.record import RESULTS
from monolane.model.catalogue import CATALOGUE as MODELS
from monolane.model.catalogue import BundledModel
from monolane.model.quantise import QuantisedWeights
from monolane.model.weights import expected_shapes
from monolane.planner import here
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.machines import MACHINES
from monolane.target import plan_for
from monolane.target.cuda.driver import Device


class Plan:
    """The command, in a folder that is no checkout."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["monolane", "plan", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = self._capsys.readouterr()
        return int(end.value.code or 0), out, err

    def json(self, *words: str) -> Any:
        code, out, err = self(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    monkeypatch.setattr(ceiling_store, "stored", lambda device: None)
    monkeypatch.setattr(here, "find_gpu", lambda: None)
    return Plan(monkeypatch, capsys)


@pytest.mark.parametrize("mixture", [MXFP4, MXFP4_Q8])
def test_a_mixture_of_gpt_oss_has_the_bytes_of_its_shape(plan: Plan, mixture: str) -> None:
    config = SHAPES["gpt-oss-120b"]
    streamed = plan_for(config, workers=2, formats=MadeUpMixture(config, mixture).format).bytes_per_token
    found = plan.json("gpt-oss-120b", "--weights", mixture, "--context", "0")
    assert found["bytes_per_token"] == pytest.approx(streamed, rel=0.01)


@pytest.mark.parametrize("weights", ["q8", "q4", "q4_k_m", "q4_0"])
@pytest.mark.parametrize("shape", ["qwen2.5-coder-1.5b", "llama-3.1-8b"])
def test_low_bit_weights_of_a_shape_have_the_bytes_of_the_formats_that_are_streamed(
    plan: Plan, shape: str, weights: str
) -> None:
    config = replace(SHAPES[shape], tied=shape != "llama-3.1-8b")
    made_up = (
        MadeUpMixture(config, weights) if weights in MIXTURES else QuantisedWeights(MadeUpWeights(config), weights)
    )
    streamed: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for name, size in expected_shapes(config):
        if len(size) == 2 and (name != "embed" or config.tied):
            outside = "head" if name in ("embed", "head") else None
            part = outside or ("dense ffn" if name.endswith(("gate", "up", "down")) else "attention")
            streamed[part] += size[0] * made_up.format(name).row_bytes(size[1])
            elements[part] += size[0] * size[1]
    found = plan.json(shape, "--weights", weights, "--on", "H200")
    parts = {row["part"]: row for row in found["parts"]}
    for part, size in streamed.items():
        assert parts[part]["active"] == pytest.approx(size)
        assert parts[part]["bits"] == pytest.approx(8 * size / elements[part])


def test_what_was_not_measured_has_no_error_bar(plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With results of dense models in bf16 alone."""
    folder = Path(__file__).parents[2] / RESULTS
    kept = tmp_path / RESULTS
    kept.mkdir(parents=True)
    for name in ("ceiling-h200-cuda.json", "decode-llama-3.2-1b-cuda.json", "decode-llama-3.1-8b-cuda.json"):
        (kept / name).write_text((folder / name).read_text())
    monkeypatch.chdir(tmp_path)
    _, out, _ = plan("llama-3.1-8b", "--on", "H200")
    assert "± " in out.split("predicted")[1].splitlines()[0]
    for words, why in (
        (["llama-3.1-8b", "--weights", "q4_k_m"], "weights other than bf16"),
        (["laneformer-2b", "--on", "8xH200"], "exchanges (measured inside one GPU alone)"),
        (["laneformer-2b", "--on", "H200"], "lanes of the model's own"),
        (["llama-3.1-8b", "--on", "MI300X"], "the latencies of MI300X"),
        (["qwen3-30b-a3b", "--on", "H200"], "experts"),
        (["llama-3.1-8b", "--on", "B200"], "the latencies of B200"),
    ):
        _, out, _ = plan(*words)
        assert "±" not in out.split("predicted")[1].split("error bar")[0]
        assert why in " ".join(out.split("error bar")[1].split())
    assert plan.json("llama-3.1-8b", "--weights", "q4_k_m")["error"] is None


def test_what_others_have_measured_stands_beside_the_prediction(plan: Plan) -> None:
    _, out, _ = plan("laneformer-2b", "--on", "8xH200")
    assert "2,100 tok/s, measured" in out
    for words in (["laneformer-2b", "--on", "H200"], ["laneformer-2b", "--on", "8xH100"], ["llama-3.1-8b"]):
        assert "\npublished" not in plan(*words)[1]


def test_a_model_that_comes_with_monolane_has_a_plan(plan: Plan) -> None:
    found = plan.json("laneformer-tiny")
    model = MODELS["laneformer-tiny"]
    assert isinstance(model, BundledModel)
    assert found["model"] == model.name
    assert 2 * found["parameters"] == pytest.approx((model.folder / "model.safetensors").stat().st_size, rel=0.01)


def test_a_plan_says_all_it_should(plan: Plan) -> None:
    code, out, err = plan("qwen3-coder-next", "--on", "8xH200", "--weights", "fp8", "--context", "32k")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    heading = out.splitlines()[0]
    for word in ("Qwen3-Coder-Next", "8 x H200", "8 lanes", "fp8", "32,768"):
        assert word in heading
    for row in ("attention", "routed experts", "shared experts", "router", "head", "embedding row", "cache", "total"):
        assert any(line.startswith(row) for line in out.splitlines())
    for label in ("memory", "roofline", "predicted", "binds", "error bar", "assumed"):
        assert f"\n{label} " in out
    assert "fits" in out
    assert "leave-one-out" in out
    assert "exchange" in out.split("\nassumed ")[1]


def test_json_has_the_numbers_of_the_text(plan: Plan) -> None:
    words = ("llama-3.1-8b", "--on", "2xH100")
    found = plan.json(*words)
    text = plan(*words)[1]
    assert f"{found['us_per_token']:,.0f} µs per token" in text
    assert f"{found['tokens_per_second']:,.0f} tok/s" in text
    assert found["us_per_token"] == pytest.approx(sum(found["terms_us"].values()))
    assert found["bytes_per_token"] == pytest.approx(sum(part["active"] for part in found["parts"]))
    assert found["us_per_token"] >= found["roofline_us"]
    assert (found["lanes"], found["delay"], found["dtype"]) == (2, 0, "bf16")
    assert f"binds      {found['binds']}:" in text


def test_fewer_lanes_than_gpus_are_told(plan: Plan) -> None:
    assert "2 lanes (6 of the 8 GPUs unused)" in plan("llama-3.1-8b", "--on", "8xH200", "--lanes", "2")[1]


def test_a_delay_is_the_models_own_or_needs_training(plan: Plan) -> None:
    own = plan.json("laneformer-2b", "--on", "8xH200")
    none = plan.json("laneformer-2b", "--on", "8xH200", "--delay", "0")
    assert own["delay"] == 4
    assert own["us_per_token"] <= none["us_per_token"]
    assert "delay" not in own["assumed"]
    assert "trained" in plan.json("llama-3.1-8b", "--on", "8xH200", "--delay", "4")["assumed"]["delay"]
    assert plan.json("laneformer-2b", "--on", "H200")["delay"] == 0


def test_figures_that_are_not_public_are_shown_as_assumptions(plan: Plan) -> None:
    for name, entry in CATALOGUE.items():
        out = plan(name, "--on", "8xB200")[1]
        for key in entry.assumed:
            assert f"{entry.title}: {key}:" in " ".join(out.split())


@pytest.mark.parametrize("name", [*MACHINES, "rtx-4090", "rtx5090", "mi300x", "1xB200"])
def test_every_machine_can_be_planned_for(plan: Plan, name: str) -> None:
    found = plan.json("qwen2.5-coder-0.5b", "--on", name)
    assert found["lanes"] == 1
    assert found["nominal_bytes_per_s"] > found["ceiling_bytes_per_s"]


def test_the_list_has_every_machine_and_model(plan: Plan) -> None:
    code, out, _ = plan("--list")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    for name in (*MACHINES, *CATALOGUE, "this"):
        assert any(line.startswith(name) for line in out.splitlines())
    listed = plan.json("--list")
    assert [model["name"] for model in listed["models"]] == list(CATALOGUE)
    assert [machine["name"] for machine in listed["machines"]] == list(MACHINES)


def test_the_table_of_projections(plan: Plan) -> None:
    code, out, _ = plan("--table", "kog")
    assert code == 0
    assert "CONTRADICTION" in out
    rows = plan.json("--table", "kog")
    assert {row["model"] for row in rows if row["published_elsewhere"]} == {"kimi-k2.6"}
    assert all(row["explanation"] for row in rows)


def test_results_of_the_current_folder_calibrate(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    code, out, _ = plan("llama-3.2-1b")
    assert code == 0
    assert "no measured result" in out
    assert "±" not in out
    probes = plan.json("llama-3.2-1b")
    assert probes["error"] is None
    result = {
        "benchmark": "decode", "model": "llama-3.2-1b", "dtype": "bf16", "prompt_tokens": 128, "tokens": 512,
        "us_per_token": 900.0, "ceiling_bytes_per_s": 4.4e12, "machine": {"gpu": {"name": "NVIDIA H200"}},
    }  # fmt: skip
    (folder / "decode-llama-3.2-1b-cuda.json").write_text(json.dumps(result))
    after = plan.json("llama-3.2-1b", "--context", "384")
    assert after["ceiling_bytes_per_s"] == 4.4e12
    assert after["us_per_token"] == pytest.approx(900, rel=0.1)
    assert after["error"] > 0.2  # what the probes alone would have been off
    assert "1 measured time" in after["error_method"]


def test_this_machine_needs_its_ceiling(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "available_memory", lambda: 8 * 10**9)
    code, out, err = plan("smollm2-135m", "--on", "this")
    assert (code, out) == (6, "")
    assert "monolane ceiling" in err
    monkeypatch.setattr(ceiling_store, "stored", lambda device: 20e9 if device == "cpu" else None)
    found = plan.json("smollm2-135m", "--on", "this")
    assert found["ceiling_bytes_per_s"] == 20e9
    assert "monolane ceiling" in found["ceiling_source"]
    assert found["nominal_bytes_per_s"] is None
    assert found["machine"]["memory_bytes"] == 8 * 10**9
    assert plan("llama-3.1-8b", "--on", "this")[0] == 6  # 16 GB do not fit


def test_results_of_this_cpu_are_its_own(plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(here, "available_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(ceiling_store, "stored", lambda device: 20e9 if device == "cpu" else None)
    monkeypatch.setattr(here, "processor_name", lambda: "Some CPU")
    monkeypatch.setattr(here, "processors", lambda: (0, 2, 4))
    RESULTS.mkdir(parents=True)
    result = {
        "benchmark": "decode", "model": "smollm2-135m", "dtype": "bf16", "prompt_tokens": 128, "tokens": 64,
        "us_per_token": 20e3, "ceiling_bytes_per_s": 20e9, "machine": {"processor": "Some CPU", "cores": 3},
    }  # fmt: skip
    (RESULTS / "mine.json").write_text(json.dumps(result))
    found = plan.json("smollm2-135m", "--on", "this")
    assert found["machine"]["name"] == "Some CPU, 3 cores"
    assert "on Some CPU, 3 cores" in found["error_method"]
    assert "taken from" not in found["error_method"]
    assert "the latencies of CPU (taken from Some CPU" in plan.json("smollm2-135m", "--on", "CPU")["error_method"]


def test_hand_offs_of_this_machine_are_those_its_ceiling_has_found(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 here, and the repository's results of an H200 beside its ceiling."""
    card = Device(None, "NVIDIA H100 80GB HBM3", 132, 232448, 80 * 10**9, (9, 0))
    monkeypatch.setattr(here, "find_gpu", lambda: card)
    monkeypatch.setattr(ceiling_store, "stored", lambda device: 3.2e12)
    times = []
    for us in (1.0, 3.0):
        monkeypatch.setattr(ceiling_store, "stored_handoff_us", lambda device, us=us: us)
        found = plan.json("smollm2-135m", "--on", "this")
        times.append((found["latencies"]["handoff_us"], found["us_per_token"]))
        assert "as 'monolane ceiling' found" in found["error_method"]
    assert times[1][0] == pytest.approx(3 * times[0][0])
    assert times[1][1] > times[0][1]


def test_a_gpu_that_is_here_counts_with_what_was_measured_on_it(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Device(None, "NVIDIA H200", 132, 232448, 150 * 10**9, (9, 0))
    monkeypatch.setattr(here, "find_gpu", lambda: card)
    monkeypatch.setattr(ceiling_store, "stored", lambda device: 4.6e12 if device == "cuda" else None)
    for name in ("this", "H200", "8xH200"):
        found = plan.json("llama-3.2-1b", "--on", name)
        assert (found["machine"]["name"], found["ceiling_bytes_per_s"]) == ("H200", 4.6e12)
    assert plan.json("llama-3.2-1b", "--on", "H100")["ceiling_source"] == "assumed"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "MODEL, --table and --list"),
        (["llama-3.1-8b", "--list"], 2, "MODEL, --table and --list"),
        (["llama-3.1-9b"], 2, "Did you mean llama-3.1-8b?"),
        (["no/such.gguf"], 2, "--list"),
        (["llama-3.1-8b", "--on", "H300"], 2, "H200"),
        (["llama-3.1-8b", "--on", "0xH200"], 2, "from 1 to"),
        (["llama-3.1-8b", "--on", "999xH200"], 2, "from 1 to"),
        (["llama-3.1-8b", "--on", " "], 2, "empty"),
        (["llama-3.1-8b", "--on", "2xCPU"], 2, "one CPU"),
        (["llama-3.1-8b", "--on", "2xH200", "--lanes", "3"], 2, "from 1 to 2"),
        (["llama-3.1-8b", "--lanes", "0"], 2, "from 1 to 1"),
        (["llama-3.1-8b", "--weights", "int2"], 2, "bf16, fp8, fp4, q8, q4, q4_k_m"),
        (["llama-3.1-8b", "--context", "many"], 2, "--context"),
        (["llama-3.1-8b", "--context", "200k"], 2, "131,072"),
        (["llama-3.1-8b", "--delay", "2"], 2, "one lane"),
        (["llama-3.1-8b", "--on", "2xH200", "--delay", "99"], 2, "64"),
        (["deepseek-v4-pro", "--on", "4xH200"], 6, "does not fit 4 x H200"),
        (["llama-3.1-8b", "--on", "RTX 4090", "--context", "128k"], 6, "cache for 131,072 tokens"),
        (["--table", "other"], 2, "--table kog"),
    ],
)
def test_mistakes_are_explained(plan: Plan, words: list[str], code: int, says: str) -> None:
    found, out, err = plan(*words)
    assert (found, out) == (code, "")
    assert says in err
    assert err.count("\n") == 2
    assert "Traceback" not in err


def test_a_folder_of_a_family_nobody_described(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv"}))
    code, _, err = plan(str(tmp_path))
    assert code == 4
    assert "'rwkv'" in err
    assert "qwen3_moe" in err
