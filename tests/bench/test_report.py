"""Result files fit their schemas, and the README's tables and docs/results.md are exactly what follows from them."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monolane.bench.measure import timing
from monolane.bench.quality.run import QUALITY
from monolane.bench.report import page, record, schema, show, tables
from monolane.errors import UsageError

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in (record.RESULTS, QUALITY) for path in (ROOT / folder).glob("*.json"))
COMMON = {
    "machine": {"processor": "P", "cores": 2, "system": "Linux"},
    "versions": {"monolane": "1", "python": "3", "torch": None},
    "method": "carefully",
    "command": "monolane bench m",
}
GPU = {**COMMON["machine"], "gpu": {"name": "H200", "driver_version": "580"}}  # type: ignore[dict-item]


def decode_result(**changes: Any) -> dict[str, Any]:
    return {
        "benchmark": "decode",
        "model": "m",
        "dtype": "bf16",
        "device": "cpu",
        "context": 1024,
        "us_per_token": 2000.0,
        "bytes_per_token": 20_000_000,
        "ceiling_bytes_per_s": 12.5e9,
        "fraction_of_ceiling": 0.8,
        "peers": {"llama.cpp, same file": {"us_per_token": 4000.0, "ours_is_faster_by": 2.0}},
        **COMMON,
        **changes,
    }


ONE_OF_EACH: list[dict[str, Any]] = [
    decode_result(),
    decode_result(
        device="cuda (H200)",
        machine=GPU,
        us_per_token=600.0,
        us_per_token_device=601.0,
        sampled_us_per_token=610.0,
        sampled_us_per_token_device=611.0,
        logprobs_us_per_token=620.0,
        token_gaps_us={"p50": 598.0, "p90": 605.0, "p99": 640.0},
        first_token_ms={"128": {"host": 9.5, "device": 9.0}, "1024": {"host": 72.9, "device": 72.0}},
        throughput={"requests": 8, "tokens_per_second": 1500.5},
        energy_j_per_token=0.4567,
        fraction_of_nominal=0.75,
        accuracy={"verdict": "passed"},
        peers={
            name: {"us_per_token": 1500.0, "ours_is_faster_by": 2.5}
            for name in ("torch.compile", "llama.cpp, same file")
        },
        peers_skipped={"vllm": "it is not installed"},
    ),
    {
        "benchmark": "context", "model": "m", "dtype": "bf16", "device": "cuda (H200)", "context": 9000,
        "bytes_per_token": 1, "ceiling_bytes_per_s": 5e12, **COMMON, "machine": GPU,
        "points": [
            {"context": 0, "us_per_token": 600.0, "growth_us": 0.0, "ideal_growth_us": 0.0},
            {"context": 8192, "us_per_token": 700.0, "growth_us": 100.0, "ideal_growth_us": 50.0},
        ],
        "left_out": {"16384": "the model was made for 9,000 tokens"},
    },
    {
        "benchmark": "stages", "model": "m", "dtype": "bf16", "device": "cpu", "us_per_token": 1.0,
        "stages_us": {"qkv": 30.0, "head": 10.0}, "times": {"qkv": 16, "head": 1}, **COMMON,
    },
    {
        "benchmark": "delays", "model": "m", "dtype": "bf16", "device": "cuda (H200)", "placement": "apart", "lanes": 8,
        "points": [
            {"delay": 0, "us_per_token": 1200.0, "exposed_us": 150.0, "exposed_in_layers_us": 140.0,
             "mean_us": 190.0, "of_lanes_us": [230.0, 150.0]},
        ],
        **COMMON, "machine": GPU,
    },
    {
        "benchmark": "load", "model": "m", "peak_over_tape": 1.25, **COMMON,
        "first": {"load_s": 12.3, "first_token_s": 12.4, "tape_bytes": 4, "peak_bytes": 5},
        "second": {"load_s": 3.0, "first_token_s": 3.1, "tape_bytes": 4, "peak_bytes": 5},
    },
    {
        "benchmark": "workflow", "model": "m", "dtype": "bf16", "device": "cpu", "tokens": 50_000, "wall_s": 31.25,
        "tokens_per_second": 1600.0, "wall_s_at": {"100 tok/s": 500.0, "3000 tok/s": 16.7}, "conversations": 4,
        "prompt_tokens": 1000, "cached_tokens": 900, **COMMON,
    },
    {
        "benchmark": "server", "model": "m", "dtype": None, "device": "server at http://x", "us_per_token": 1234.0,
        "tokens_per_second": 810.4, "first_token_ms": {"128": {"host": 20.0}},
        "throughput": {"tokens_per_second": 700.0}, **COMMON,
    },
    {
        "benchmark": "ceiling", "model": "none", "device": "cuda (H200)", "workers": 132, "ceiling_bytes_per_s": 4.6e12,
        "best_way": "copies", "streaming": "in flight", "reads": [{"way": "copies", "bytes_per_s": 4.6e12}],
        "waits": [{"what": "hand-off", "streaming_bytes": 32768, "us": 1.75, "bytes_per_s": 4.4e12}],
        "host": {"launch_us": 10.5, "launch_to_end_us": None, "round_trip_us": 3.5}, **COMMON, "machine": GPU,
    },
]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_result_fits_its_schema(path: Path) -> None:
    assert schema.problems(json.loads(path.read_text())) == []


@pytest.mark.parametrize("result", ONE_OF_EACH, ids=lambda result: result["benchmark"])
def test_what_the_benchmarks_write_fits_with_or_without_more(result: dict[str, Any]) -> None:
    assert schema.problems(result | {"one_more": {"thing": [None]}}) == []


def test_there_is_an_example_of_every_kind() -> None:
    kept = [json.loads(path.read_text()) for path in FILES]
    assert {result["benchmark"] for result in [*ONE_OF_EACH, *kept]} == schema.KINDS.keys()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (["benchmark"], "race", "benchmark: 'race' is none of decode, "),
        (["machine"], None, "machine is not an object"),
        (["machine", "cores"], "2", "machine.cores is '2'"),
        (["versions", "torch"], 2, "versions.torch is 2"),
        (["us_per_token"], float("nan"), "us_per_token is nan"),
        (["us_per_token"], True, "us_per_token is True"),
        (["context"], 1.5, "context is 1.5"),
        (["peers", "llama.cpp, same file"], {}, "peers.llama.cpp, same file.us_per_token is missing"),
        (["energy_j_per_token"], "little", "energy_j_per_token is 'little'"),
    ],
)
def test_what_is_wrong_with_a_result_is_named(place: list[str], value: Any, said: str) -> None:
    result = copy.deepcopy(decode_result())
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert said in "; ".join(schema.problems(result))


@pytest.mark.parametrize("key", [*COMMON, "benchmark", "model", "us_per_token", "fraction_of_ceiling", "peers"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    result = decode_result()
    del result[key]
    assert schema.problems(result) == [f"{key} is missing"]


def test_lists_have_something_in_them() -> None:
    for empty in ([], None, {}):
        assert schema.problems(ONE_OF_EACH[2] | {"points": empty}) == ["points is not a list of something"]
    assert schema.problems([]) == ["it is not an object"]


@pytest.mark.parametrize(("content", "said"), [("{", "is not JSON"), ("{}", "benchmark is missing")])
def test_a_file_that_is_no_result_is_refused_by_name(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "decode-m.json").write_text(content)
    with pytest.raises(UsageError, match=rf"decode-m\.json[\s\S]*{said}"):
        tables.results(tmp_path)


def test_the_pages_show_the_results_as_they_are(tmp_path: Path) -> None:
    for name in ("README.md", "docs/results.md", "benchmarks/goals.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / record.RESULTS, tmp_path / record.RESULTS)
    assert tables.write(tmp_path) == [], "run: make report"


def test_pages_are_made_anew_where_results_change(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    (tmp_path / "docs").mkdir()
    record.write("decode-m", decode_result(), tmp_path / record.RESULTS)
    assert tables.write(tmp_path) == [tables.README, tables.PAGE]
    assert tables.write(tmp_path) == []
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n{tables.BEGIN}\n| model |")
    assert text.endswith(f"\n{tables.END}\nafter\n")
    record.write("decode-m", decode_result(us_per_token=1000.0), tmp_path / record.RESULTS)
    assert tables.write(tmp_path) == [tables.README, tables.PAGE]


def test_the_readme_shows_gpus_first_and_the_fastest_first() -> None:
    slow = decode_result(machine=GPU, us_per_token=900.0, peers={})
    rows = tables.table([decode_result(), slow, *ONE_OF_EACH[1:]]).splitlines()
    assert rows[0].startswith("| model | GPU | µs/token, greedy | sampled | tok/s, greedy | sampled |")
    assert rows[2] == "| m bf16 | H200 | 600 | 610 | 1,667 | 1,639 | 0.02 | 80% | 667 tok/s |"
    assert rows[3] == "| m bf16 | H200 | 900 | - | 1,111 | - | 0.02 | 80% | not measured |"  # of an older run
    assert rows[-3] == "| m bf16 | P, cpu | 2,000 | - | 500.0 | - | 0.02 | 80% | 250 tok/s |"
    assert tables.table([]) == rows[-1] == tables.MORE


def test_peers_of_an_earlier_run_are_shown_as_such() -> None:
    now = decode_result(machine=GPU, us_per_token=500.0, peers={})
    earlier = ONE_OF_EACH[1]
    other = earlier | {"dtype": "q4_k_m"}
    row = "| m bf16 | H200 | 500 | - | 2,000 | - | 0.02 | 80% | 667 tok/s, earlier run |"
    assert row in tables.table([now], [other, earlier])
    assert "| not measured |" in tables.table([now], [other])
    text = page.page([now], [], [earlier])
    assert "## Peers in earlier runs" in text
    assert "| m bf16 | H200 | 1,666.7 tok/s | 667 tok/s (2.50 x) | not measured |" in text


def test_the_page_shows_every_number() -> None:
    text = page.page(ONE_OF_EACH, [])
    for row in (
        "| m bf16 | cuda (H200) | 600.0 | 610.0 | 620.0 | 601.0 | 611.0 | - |",
        "| m bf16 | cpu | 2,000.0 | - | - | - | - | - |",
        "| m bf16 | H200 | 598 / 640 | 1,666.7 | 0.020 | 12.5 GB/s | 80.0% | 75.0% |",
        "| m bf16 | H200 | 9.5 ms after 128, 72.9 ms after 1,024 | 1,500.5 tok/s | 0.457 J | passed |",
        "- m bf16, H200: no vllm: it is not installed",
        "| m bf16 | H200 | 0 | 600 | - | 0 µs | - |",
        "| m bf16 | H200 | 8,192 | 700 | 100 µs | 50 µs | 2.00 |",
        "- m bf16, H200: not 16,384: the model was made for 9,000 tokens",
        "| m bf16 | cpu | qkv | 16 | 30.0 | 75% |",
        "| m | cpu | 12.3 s | 12.4 s | 3.0 s | 3.1 s | 1.25 |",
        "| m bf16 | cpu | 50,000 | 31.2 s | 1,600 | 500 s at 100 tok/s, 17 s at 3000 tok/s | 90% |",
        "| m | server at http://x | 1,234 | 810.4 | 20.0 ms after 128 | 700.0 tok/s |",
        "| hand-off | 32 KiB | 1.75 µs | 4.40 TB/s |",
        "| starting them with nothing to do, to the end | not measured |",
        "| H200, driver 580 | P | 2 | - | Linux | - |",
        "| decode, m | cpu | monolane 1, python 3 | `monolane bench m` |",
        "carefully.",
    ):
        assert row in text
    assert "| m bf16 | H200 | 1,666.7 tok/s | 667 tok/s (2.50 x) | not measured |" in text
    assert "## Goals" not in text


def growth_at(context: int) -> dict[str, object]:
    return {"value": ["points", context, "growth_us"], "over": ["points", context, "ideal_growth_us"]}


def growth_beyond(context: int) -> dict[str, object]:
    return {"value": ["points", context, "growth_us"], "less": ["points", context, "ideal_growth_us"]}


def test_goals_are_met_missed_or_open() -> None:
    goal = {"what": "speed", "benchmark": "decode", "model": "m", "on": "H200", "value": ["us_per_token"], "unit": "µs"}
    goals = [
        goal | {"must": 700, "aim": 500},
        goal | {"must": 500, "aim": None},
        goal | {"must": 500, "aim": None, "model": "other"},
        goal | {"must": 80, "aim": None, "value": ["first_token_ms", "1024", "host"], "unit": "ms"},
        goal | {"must": 80, "aim": None, "value": ["us_per_token", "no", "such"]},
        goal | {"benchmark": "context", "must": 1.6, "aim": None, "unit": "x"} | growth_at(8192),
        goal | {"benchmark": "context", "must": 1.6, "aim": None, "unit": "x"} | growth_at(4096),
        goal | {"must": 15, "aim": 6, "value": ["sampled_us_per_token"], "less": ["us_per_token"]},
        goal | {"must": 15, "aim": 6, "value": ["sampled_us_per_token"], "less": ["no", "such"]},
        goal | {"benchmark": "context", "must": 30, "aim": None, "times": 1.3} | growth_beyond(8192),
    ]
    text = page.page(ONE_OF_EACH, goals)
    assert "| speed | H200 | 700 µs | 500 µs | 600.0 µs | met |" in text
    assert "| speed | H200 | 500 µs | - | 600.0 µs | missed by 20.0% |" in text
    assert "| speed | H200 | 1.6 x | - | 2.00 x | missed by 25.0% |" in text
    assert text.count("| not measured | open |") == 4
    assert "| speed | H200 | 15 µs | 6 µs | 10.0 µs | met |" in text
    assert "| speed | H200 | 30 µs | - | 35.0 µs | missed by 16.7% |" in text
    assert "| 80 ms | - | 72.9 ms | met |" in text


def test_of_several_machines_the_slowest_has_to_meet_a_goal() -> None:
    goal = {"what": "speed", "benchmark": "decode", "model": "m", "on": "H200", "value": ["us_per_token"], "unit": "µs"}
    decoded = next(result for result in ONE_OF_EACH if result["machine"] is GPU)
    goals = [goal | {"must": 700, "aim": None}]
    for others in ([650.0, 800.0], [800.0, 650.0]):
        found = [*ONE_OF_EACH, *(decoded | {"us_per_token": slower} for slower in others)]
        assert "| speed | H200 | 700 µs | - | 800.0 µs | missed by 14.3% |" in page.page(found, goals)


def test_every_goal_names_something_that_is_measured() -> None:
    for goal in tables.goals(ROOT / tables.GOALS):
        assert goal["benchmark"] in schema.KINDS
        optional = {"over", "less", "times", "dtypes"}
        assert goal.keys() - optional == {"what", "benchmark", "model", "on", "value", "unit", "must", "aim"}


def test_the_stages_add_up_to_a_token_and_say_what_the_stamps_cost() -> None:
    stages = {
        "benchmark": "stages", "model": "m", "us_per_token": 37.5, "stages_us": {"qkv": 30.0, "head": 10.0},
        "predicted_us": {"qkv": 20.0, "head": 5.0}, "times": {"qkv": 16, "head": 1},
    }  # fmt: skip
    *_, total, cost = show.text([stages]).splitlines()
    assert total.split() == ["a", "token", "17", "40.0", "25.0"]
    assert "37.5 µs without" in cost
    assert "2.5 µs" in cost


def test_a_result_that_git_tracks_is_replaced_only_when_told(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    folder = tmp_path / "results"
    git("init")
    first = record.write("decode-m", {"us": 1}, folder)
    assert record.write("decode-m", {"us": 2}, folder) == first  # not tracked yet
    git("add", ".")
    said = record.written("decode-m", {"us": 3}, folder, keep=False)
    beside = tmp_path / "results-new" / "decode-m.json"
    assert str(beside) in said
    assert "--keep" in said
    assert (json.loads(first.read_text())["us"], json.loads(beside.read_text())["us"]) == (2, 3)
    assert record.written("decode-m", {"us": 4}, folder, keep=True) == f"written: {first}"
    assert json.loads(first.read_text())["us"] == 4


def test_rounds_that_differ_are_told() -> None:
    assert timing.disagreement([100.0, 104.0, 109.0]) is None
    assert timing.disagreement([100.0]) is None
    assert "differ by 20%" in str(timing.disagreement([100.0, 100.0, 120.0]))
