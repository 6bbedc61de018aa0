"""``monolane ceiling``: short measurements on this CPU, an emulated GPU, and how results are kept and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from emulated_bench import EmulatedContext, compile_emulated

from monolane import cli
from monolane.bench.ceiling import cpu, exchange_gpu, latency_gpu, read_gpu
from monolane.bench.ceiling import picture as ceiling_picture
from monolane.bench.ceiling import read_cpu as ceiling
from monolane.bench.ceiling import result as ceiling_result
from monolane.bench.ceiling import run as ceiling_run
from monolane.bench.ceiling import store as ceiling_store
from monolane.bench.ceiling.result import BARRIER, HANDOFF, Ceiling, Exchange, Host, Read, Wait
from monolane.bench.report import record
from monolane.bench.report.schema import problems
from monolane.errors import ResourceError, UsageError
from thorough import thorough

FOUND = Ceiling(
    "cuda (Card)",
    132,
    [Read("loads", 4.5e12), Read("copies", 4.6e12)],
    [Wait(HANDOFF, 0, 1.25), Wait(HANDOFF, 32768, 2.5, 4.4e12), Wait(BARRIER, 0, 0.9)],
    Host(12.5, None, 3.0),
    "in flight for each",
    4.2,
    [Exchange(8, 16, 3072, 0, 2.1, 1.05, 2, 0.0), Exchange(8, 16, 3072, 32768, 3.2, 1.6, 2, 3.5e12)],
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, but for the compiled kernels."""
    from monolane.cache import cache_folder, cache_root

    kernels = cache_folder("kernels")
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    cache_root().mkdir()
    kernels.mkdir(parents=True, exist_ok=True)
    (cache_root() / "kernels").symlink_to(kernels)
    return cache_root()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured, but not for long enough to be exact."""
    monkeypatch.setattr(ceiling, "BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(cpu, "REPEATS", 1)
    monkeypatch.setattr(cpu, "ROUNDS", 20)
    monkeypatch.setattr(cpu, "WAKES", 3)
    monkeypatch.setattr(cpu, "DEADLINE_S", 60.0)


@pytest.fixture
def gpu_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("monolane.target.cuda.driver", reason="needs the cuda-bindings package")
    device = SimpleNamespace(
        name="threads", processors=2, memory=1 << 30, shared_limit=227 << 10, architecture="threads"
    )
    for room in (read_gpu, latency_gpu, exchange_gpu):
        monkeypatch.setattr(room, "compile_kernel", compile_emulated)
        monkeypatch.setattr(room, "SHARE_BYTES", 1 << 17)
        monkeypatch.setattr(room, "DEADLINE_S", 60.0)
    ways = (read_gpu.Way(64, unroll=2), read_gpu.ring(16, 32), read_gpu.ring(16, 32, in_turn=True))
    monkeypatch.setattr(read_gpu, "SWEEP", ways)
    monkeypatch.setattr(driver, "Context", EmulatedContext)
    monkeypatch.setattr(ceiling_run, "required_gpu", lambda: device)
    for name, few in (("ROUNDS", 4), ("WARM_UP", 2), ("REPEATS", 1), ("LAUNCHES", 2), ("ANSWERS", 3)):
        monkeypatch.setattr(latency_gpu, name, few)
    for name, few in (("ROUNDS", 4), ("WARM_UP", 2), ("REPEATS", 1), ("VALUES", (1, 64)), ("IN_FLIGHT", (0, 2))):
        monkeypatch.setattr(exchange_gpu, name, few)
    monkeypatch.setattr(ceiling_store, "_machine", lambda device: device)


def heard(_: str) -> None: ...


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["monolane", "ceiling", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_command_measures_shows_keeps_and_draws(
    cache: Path, brief: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "c.json", tmp_path / "c.svg"
    assert command(monkeypatch, "--device", "cpu", "--json", "--out", str(out), "--picture", str(picture)) == 0
    result = json.loads(capsys.readouterr().out)
    assert problems(result) == []
    assert result == json.loads(out.read_text())
    assert result["command"] == "monolane ceiling --device cpu --json"
    assert result["reads"][0]["way"] == "1 thread"
    assert all(read["bytes_per_s"] > 0 for read in result["reads"])
    assert {(wait["what"], wait["streaming_bytes"] > 0) for wait in result["waits"]} == {
        (what, streaming) for what in (HANDOFF, BARRIER) for streaming in (False, True)
    }
    assert result["host"]["launch_us"] > 0
    assert ceiling_store.stored("cpu") == result["ceiling_bytes_per_s"]
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")


@thorough
def test_a_gpu_is_measured_in_every_way(cache: Path, gpu_of_threads: None) -> None:
    result = ceiling_run.run(ceiling_run.Options("cuda", None, None), heard)
    assert problems(result | {"machine": result["machine"] | {"gpu": {"name": "threads"}}}) == []
    assert [read["way"] for read in result["reads"]] == [way.name for way in read_gpu.SWEEP]
    assert len(result["waits"]) == 8
    assert all(wait["us"] > 0 for wait in result["waits"])
    assert all((wait["bytes_per_s"] > 0) == (wait["streaming_bytes"] > 0) for wait in result["waits"])
    sizes = [(exchange["values"], exchange["streaming_bytes"]) for exchange in result["exchanges"]]
    assert sizes == [(1, 0), (1, 32768), (64, 0), (64, 32768)]
    assert {(exchange["lanes"], exchange["workers"]) for exchange in result["exchanges"]} == {(2, 1)}
    assert 0 < result["host"]["launch_us"] <= result["host"]["launch_to_end_us"]
    assert result["host"]["round_trip_us"] > 0
    assert ceiling_store.stored("cuda") == max(read["bytes_per_s"] for read in result["reads"])


def test_more_and_more_threads_read() -> None:
    assert cpu.thread_counts(1) == [1]
    assert cpu.thread_counts(6) == [1, 2, 4, 6]
    assert cpu.thread_counts(8) == [1, 2, 4, 8]


def test_many_threads_share_the_memory_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "ALL_BYTES", 1 << 20)
    assert ceiling.Buffers(1).size == 1 << 20
    assert ceiling.Buffers(3).size == (1 << 20) // 3 // 4096 * 4096


def test_the_fastest_way_is_the_ceiling_and_the_table_is_aligned() -> None:
    result = FOUND.to_dict()
    assert result["ceiling_bytes_per_s"] == 4.6e12
    assert result["best_way"] == "copies"
    lines = ceiling_result.text(result).splitlines()
    assert lines[0] == "cuda (Card): 4.60 TB/s, by: copies"
    row = next(line for line in lines if line.startswith("loads"))
    assert row.split() == ["loads", "4.50", "TB/s", "97.8%"]
    (exchanged,) = (line for line in lines if line.startswith("8 lanes of 16 workers"))
    assert exchanged.split()[5:] == ["3,072", "2", "1.05", "µs", "2.10", "µs", "3.20", "µs", "3.50", "TB/s"]
    waits = [line for line in lines if " µs" in line and "workers" not in line]
    assert len({line.index(" µs") for line in waits[:3]}) == 1
    assert "32 KiB  2.50 µs  4.40 TB/s" in waits[1]
    assert not any("None" in line for line in lines)


def test_the_picture_has_a_bar_for_everything() -> None:
    drawn = ElementTree.fromstring(ceiling_picture.text(FOUND.to_dict()))
    words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"loads", "copies", "hand-off, 32 KiB", "barrier, idle", "2.50 µs beside 4.40 TB/s"} <= set(words)
    bars = [element for element in drawn.iter() if element.tag.endswith("rect")][1:]
    assert len(bars) == 2 + 3 + 2


@pytest.mark.parametrize(
    ("device", "out", "picture", "said"),
    [
        ("gpu", None, None, "no device 'gpu'"),
        ("interpreter", None, None, "no device 'interpreter'"),
        ("cpu", "c.txt", None, "c.txt does not end in .json"),
        ("cpu", None, "c.png", "c.png does not end in .svg"),
        ("cpu", "no/such/folder/c.json", None, "no place for a file"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    device: str, out: str | None, picture: str | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        ceiling_run.Options(device, out and tmp_path / out, picture and tmp_path / picture)  # type: ignore[arg-type]


def test_without_a_gpu_the_message_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> None:
        raise UsageError("There is no NVIDIA GPU, or no driver for it.", "Use device='cpu'.")

    monkeypatch.setattr(ceiling_run, "required_gpu", none)
    assert command(monkeypatch, "--device", "cuda") == 2
    assert "error: There is no NVIDIA GPU" in capsys.readouterr().err


def result_of_this_cpu(speed: float) -> dict[str, Any]:
    return {**FOUND.to_dict(), "device": "cpu (2 x avx512)", "ceiling_bytes_per_s": speed}


def test_the_latest_ceiling_of_this_machine_is_kept(cache: Path) -> None:
    assert ceiling_store.stored("cpu") is None
    for speed in (20e9, 10e9):
        ceiling_store.keep(result_of_this_cpu(speed))
        assert ceiling_store.stored("cpu") == speed
    assert len(list((cache / "ceilings").iterdir())) == 1
    assert ceiling_store.latest("cpu") is not None
    assert ceiling_store.stored_handoff_us("cpu") == FOUND.waits[0].us


@pytest.mark.parametrize(
    "waits",
    [
        None,
        "hand-off",
        [7, {"what": "hand-off", "streaming_bytes": 4096, "us": 3.0}],
        [{"what": "hand-off", "streaming_bytes": 0, "us": "soon"}],
        [{"what": "hand-off", "streaming_bytes": 0, "us": -1.0}],
    ],
)
def test_a_file_that_says_nothing_of_hand_offs_counts_as_none(cache: Path, waits: object) -> None:
    assert ceiling_store.stored_handoff_us("cpu") is None
    ceiling_store.keep({**result_of_this_cpu(20e9), "waits": waits})
    assert ceiling_store.stored("cpu") == 20e9
    assert ceiling_store.stored_handoff_us("cpu") is None


def test_auto_is_the_gpu_where_there_is_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ceiling_store.keep(result_of_this_cpu(20e9))
    monkeypatch.setattr(ceiling_store, "find_gpu", lambda: None)
    assert ceiling_store.stored("auto") == 20e9
    assert ceiling_store.stored("cuda") is None
    assert ceiling_store.keep(FOUND.to_dict()) is None  # of a card that is not here
    monkeypatch.setattr(ceiling_store, "find_gpu", lambda: SimpleNamespace(name="Card", processors=132))
    monkeypatch.setattr(ceiling_store, "_driver_version", lambda: 13000)
    assert ceiling_store.stored("auto") is None  # of the CPU only
    ceiling_store.keep(FOUND.to_dict())
    assert ceiling_store.stored("auto") == ceiling_store.stored("cuda") == 4.6e12
    monkeypatch.setattr(ceiling_store, "_driver_version", lambda: 13010)
    assert ceiling_store.stored("cuda") is None  # another driver may be faster


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"kept_for": 1}', b'{"ceiling_bytes_per_s": 1e9}'],
)
def test_a_file_that_is_damaged_or_foreign_counts_as_none(cache: Path, content: bytes) -> None:
    path = ceiling_store.keep(result_of_this_cpu(20e9))
    assert path is not None
    path.write_bytes(content)
    assert ceiling_store.stored("cpu") is None


@pytest.mark.parametrize("speed", ["fast", None, -1.0, 0, float("nan"), float("inf"), [1]])
def test_a_speed_that_is_none_counts_as_none(cache: Path, speed: Any) -> None:
    ceiling_store.keep(result_of_this_cpu(speed))
    assert ceiling_store.stored("cpu") is None


def test_another_machines_file_counts_as_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ceiling_store.keep(result_of_this_cpu(20e9))
    assert path is not None
    monkeypatch.setattr(ceiling_store, "processor_name", lambda: "another")
    moved = ceiling_store.keep(result_of_this_cpu(30e9))
    assert moved is not None
    assert moved != path
    path.write_bytes(moved.read_bytes())  # a copied cache
    monkeypatch.setattr(ceiling_store, "processor_name", record.processor_name)
    assert ceiling_store.stored("cpu") is None


def test_a_cache_that_cannot_be_written_does_not_cost_the_result(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise ResourceError("The disk is full.", "Free some space.")

    said: list[str] = []
    monkeypatch.setattr(ceiling_store, "keep", refuse)
    assert ceiling_run.run(ceiling_run.Options("cpu", None, None), said.append)["ceiling_bytes_per_s"] > 0
    assert "The disk is full" in said[-1]
