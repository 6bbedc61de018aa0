"""The benchmarks of a GPU, measured on a target and a ceiling whose times are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_target import MadeUpTarget

from monolane.bench import context_gpu, decode_gpu, record, report, run_gpu, shapes, timing, torch_peer
from monolane.errors import UsageError

CONFIG = shapes.SHAPES["llama-3.2-1b"]
SCHEMA = {
    "benchmark", "model", "dtype", "device", "context", "us_per_token", "bytes_per_token", "ceiling_bytes_per_s",
    "fraction_of_ceiling", "peers", "versions", "command", "method", "rounds", "machine",
}  # fmt: skip


def heard(_: str) -> None: ...


def ceiling() -> dict[str, float]:
    return {"loads": 4.0e12, "copies": 5.0e12}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> MadeUpTarget:
    made = MadeUpTarget()
    monkeypatch.setattr(timing, "perf_counter", made.host_clock)
    return made


def decode_result(target: MadeUpTarget, **peers: decode_gpu.Peer) -> dict[str, Any]:
    result = decode_gpu.measure("llama-3.2-1b", CONFIG.vocab, target, ceiling, peers, 3, heard)  # type: ignore[arg-type]
    machine = {"processor": "P", "gpu": {"name": "H200"}}
    return json.loads(json.dumps(result | {"machine": machine, "versions": {}, "command": "c"}))  # type: ignore[no-any-return]


def test_the_difference_leaves_prompt_start_and_end_out(target: MadeUpTarget) -> None:
    target.drift = 0.5
    found = timing.decode(target, list(range(128)), 512)  # type: ignore[arg-type]
    assert found.us_per_token == pytest.approx(600)
    assert found.us_per_token_device == pytest.approx(300)  # the other clock, and it alone
    assert found.short.seconds == pytest.approx(0.004 + 128 * 0.0002 + 0.004)
    assert found.short.first_ms == pytest.approx(128 * 0.2 / 2)


def test_a_short_answer_is_no_measurement(target: MadeUpTarget) -> None:
    target.stops_after = 3
    with pytest.raises(RuntimeError, match="3 tokens were made, not 4"):
        timing.ask(target, [1, 2], 4)  # type: ignore[arg-type]


def test_a_decode_result_holds_the_best_ceiling_and_the_peers(target: MadeUpTarget) -> None:
    result = decode_result(target, slow=lambda: 1500.0)
    assert result.keys() >= SCHEMA
    assert result["us_per_token"] == pytest.approx(600)
    assert result["ceiling_bytes_per_s"] == 5.0e12
    assert result["fraction_of_ceiling"] == pytest.approx(2.4e9 / 600e-6 / 5.0e12)
    assert result["peers"]["slow"] == {"us_per_token": 1500.0, "ours_is_faster_by": pytest.approx(2.5)}
    assert result["first_token_ms"]["1024"]["device"] == pytest.approx(1024 * 0.2)
    assert result["first_token_ms"]["128"]["host"] == pytest.approx(8 + 128 * 0.2)
    assert result["token_gaps_us"]["p99"] == pytest.approx(600)
    assert result["same_tokens_in_all_rounds"] is True
    assert len(result["rounds"]) == 3


def test_growth_with_the_context_is_held_against_the_bytes_of_the_cache(target: MadeUpTarget) -> None:
    target.position_s = 2e-9
    contexts = [32768, 128, 8192]
    result = context_gpu.measure("m", CONFIG, target, ceiling, contexts, 2, heard)  # type: ignore[arg-type]
    points = result["points"]
    assert [point["context"] for point in points] == [128, 8192, 32768]
    assert points[0]["growth_us"] == points[0]["ideal_growth_us"] == 0
    assert points[2]["growth_us"] == pytest.approx((32768 - 128) * 2e-3)
    # 16 layers, 8 heads of 64, keys and values, two bytes each
    assert points[2]["ideal_growth_us"] == pytest.approx((32768 - 128) * 16 * 8 * 64 * 2 * 2 / 5.0e12 * 1e6)
    # The cache is filled once, step by step; from then on everything but the last token is in it.
    computed = [len(request.tokens) - request.cached for request in target.requests]
    assert [count for count in computed if count > 1] == [128, 8192 - 128, 32768 - 8192]


def test_windows_bound_the_bytes_of_the_cache() -> None:
    config = replace(CONFIG, windows=(None, 100, *(100,) * 14))
    assert context_gpu.cache_bytes(config, 1000) == (1000 + 15 * 100) * 8 * 64 * 2 * 2


def test_contexts_beyond_the_model_are_refused_at_once() -> None:
    for length in (0, CONFIG.context):
        with pytest.raises(UsageError, match=f"context of {length} tokens"):
            run_gpu.check_contexts([128, length], CONFIG)


def test_a_peer_that_is_not_there_or_fails_is_a_reason_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def missing(*_: object) -> None:
        raise torch_peer.PeerMissingError("PyTorch is not installed")

    def failing(*_: object) -> None:
        raise ValueError("no such option\n at a place nobody should read of")

    monkeypatch.setattr(torch_peer.TorchPeer, "__init__", missing)
    assert run_gpu._open_peer(CONFIG, said.append) == "PyTorch is not installed"
    monkeypatch.setattr(torch_peer.TorchPeer, "__init__", failing)
    assert run_gpu._open_peer(CONFIG, said.append) == "ValueError: no such option"
    assert said[-1] == "torch.compile is skipped: ValueError: no such option"


class MadeUpCeiling:
    def __init__(self, _: object) -> None: ...

    def measure(self) -> dict[str, float]:
        return ceiling()

    def close(self) -> None: ...


def test_one_run_writes_every_result(target: MadeUpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def open_cuda(_config: object, _weights: object, context: int, *_: object) -> MadeUpTarget:
        asked.append(context)
        return target

    device = SimpleNamespace(name="H200", processors=132, memory=1 << 37)
    monkeypatch.setattr(run_gpu, "required_gpu", lambda: device)
    monkeypatch.setattr(run_gpu, "GpuReadCeiling", MadeUpCeiling)
    monkeypatch.setattr(run_gpu, "open_cuda", open_cuda)
    run_gpu.run("smollm2-135m", 2, [128, 4096], False, tmp_path, heard)
    assert asked == [4096 + context_gpu.TOKENS]
    decode, context = (
        json.loads((tmp_path / f"{name}-smollm2-135m-cuda.json").read_text()) for name in ("decode", "context")
    )
    assert decode.keys() >= SCHEMA
    assert decode["peers_skipped"] == {"torch.compile": "not asked for"}
    assert decode["machine"]["gpu"].keys() >= {"name", "driver_version", "clocks.max.mem", "power.limit"}
    assert [point["context"] for point in context["points"]] == [128, 4096]
    assert "| smollm2-135m bf16 | H200 | 600 |" in report.table(report.results(tmp_path))
    assert target.context == 0  # closed


def test_the_tables_show_results_of_a_gpu_before_those_of_cpus(target: MadeUpTarget) -> None:
    plain = decode_result(target)
    compared = decode_result(target, **{"torch.compile": lambda: 1500.0}) | {"us_per_token": 500.0, "model": "quick"}
    context = context_gpu.measure("m", CONFIG, target, ceiling, [128, 8192], 1, heard)  # type: ignore[arg-type]
    load = {
        "benchmark": "load", "model": "m", "dtype": "bf16", "machine": plain["machine"],
        "first": {"first_token_s": 12.34}, "second": {"first_token_s": 4.0},
    }  # fmt: skip
    text = report.table([plain, compared, context | {"machine": plain["machine"]}, load])
    rows = text.splitlines()
    assert rows[2].startswith("| quick bf16 | H200 | 500 | ")
    for cell in ("600", "1,667", "2.40", "5.00 TB/s", "80%", "not measured", "33.6 / 212.8 ms"):
        assert f" {cell} |" in rows[3]
    assert " 667 tok/s | 2.50 x |" in rows[2]
    assert "| m bf16 | 8,192 | 600 | 0 µs | 53 µs | 0.00 |" in rows
    assert "| m bf16 | H200 | 12.3 s | 4.0 s |" in rows
    assert text.index("H200") < text.index("llama.cpp, bf16")
    assert text.endswith(report.table([]))


def test_where_a_result_is_written_is_not_part_of_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "gpu", "llama-3.2-1b", "--out", str(tmp_path), "--rounds", "3"])
    path = record.write("decode-m-cuda", {}, tmp_path)
    assert path == tmp_path / "decode-m-cuda.json"
    assert json.loads(path.read_text())["command"] == "python -m monolane.bench gpu llama-3.2-1b --rounds 3"
