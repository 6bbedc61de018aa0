"""Tapes that processes pack are those that threads pack, and what goes wrong in a process is told by the first one."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.bench.measure import checkpoint, mixtures, shapes
from monolane.errors import ModelFileError, TargetError
from monolane.model.config import ModelConfig
from monolane.model.load import load_model
from monolane.model.quantise import quantised
from monolane.model.weights import Weights
from monolane.program.build import build_program
from monolane.program.layout import Layout
from monolane.program.plan import Plan, make_plan
from monolane.program.shard import Shard, lane_formats
from monolane.program.tape import Tape
from monolane.program.tape_store import Packing, PackingThreads, stream_lanes
from monolane.progress import Silent
from monolane.target import pack_processes
from monolane.target.pack_processes import PackProcesses, packing_of

LAYOUT = Layout("test", tile_rows=8, k_block=32, whole_blocks=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))


def small(name: str) -> ModelConfig:
    whole = shapes.named(name)
    experts = replace(whole.experts, count=5, chosen=2, ffn=256) if whole.experts else None
    ffn = 256 if whole.family == "gpt_oss" else 512  # it has one size for both
    return replace(whole, hidden=256, heads=4, kv_heads=2, ffn=ffn, vocab=96, experts=experts)


def plan_of(config: ModelConfig, weights: Weights, lanes: int = 1) -> Plan:
    formats = lane_formats(weights.format, Shard(config, lanes)) if lanes > 1 else weights.format
    return make_plan(build_program(config, lanes=lanes, formats=formats), LAYOUT, 3)


def packed(plan: Plan, weights: Weights, config: ModelConfig, packing: Packing) -> list[list[bytes]]:
    found: list[list[bytes]] = []

    def deliver(lane: int, part: Tape) -> None:
        found.append([own.tobytes() for own in part.workers])

    stream_lanes(plan, weights, config, deliver, Silent(), packing)
    return found


def folder_of(config: ModelConfig, path: Path) -> Path:
    path.mkdir()
    checkpoint.write(config, mixtures.made_up(config, mixtures.published(config)), path)
    return path


@pytest.mark.parametrize("name", ["gpt-oss-20b:2", "qwen3-30b-a3b:1", "qwen3-0.6b:2"])
@pytest.mark.parametrize("kind", ["as stored", "q8", "two lanes"])
def test_the_tapes_of_files_are_those_of_threads(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(folder_of(small(name), tmp_path / "model"))
    weights = quantised(model.weights, "q8" if kind == "q8" else None)
    plan = plan_of(model.config, weights, 2 if kind == "two lanes" else 1)
    expected = packed(plan, weights, model.config, PackingThreads())
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "another"))  # that has not kept the tape
    with PackProcesses(plan, weights, model.config, 3) as processes:
        assert packed(plan, weights, model.config, processes) == expected
        assert len(processes.pids) == 3
    assert any(np.frombuffer(own, np.uint8).any() for own in expected[0])


def test_made_up_weights_are_made_again() -> None:
    config = small("qwen3-30b-a3b:1")
    weights = mixtures.made_up(config, "q4_k_m")
    plan = plan_of(config, weights)
    with PackProcesses(plan, weights, config, 2) as processes:
        assert packed(plan, weights, config, processes) == packed(plan, weights, config, PackingThreads())


def test_an_error_of_a_process_is_raised_here(tmp_path: Path) -> None:
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan = plan_of(model.config, model.weights)
    with PackProcesses(plan, model.weights, model.config, 2) as processes:
        packed(plan, model.weights, model.config, processes)
        for file in (tmp_path / "model").glob("*.safetensors"):
            os.truncate(file, 5000)
        with pytest.raises(ModelFileError, match="ends too early"):
            packed(plan, model.weights, model.config, processes)


def test_a_process_that_is_killed_is_told() -> None:
    config = small("qwen3-0.6b:2")
    weights = mixtures.made_up(config, None)
    plan = plan_of(config, weights)
    with PackProcesses(plan, weights, config, 2) as processes:
        packed(plan, weights, config, processes)
        os.kill(processes.pids[1], signal.SIGKILL)
        with pytest.raises(TargetError, match=r"packs the weights was killed by SIGKILL"):
            packed(plan, weights, config, processes)


class FromElsewhere(mixtures.MadeUpMixture):
    """Weights that no other process can make."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        raise TypeError("not to be pickled")


@pytest.mark.parametrize("reason", ["weights", "processes"])
def test_threads_pack_where_processes_cannot(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("qwen3-0.6b:2")
    weights = FromElsewhere(config, "q8_0") if reason == "weights" else mixtures.made_up(config, "q8_0")
    if reason == "processes":
        monkeypatch.setattr(pack_processes, "MAIN", (sys.executable, "-c", "raise SystemExit(3)"))
    plan = plan_of(config, weights)
    with PackProcesses(plan, weights, config, 2) as processes:
        assert packed(plan, weights, config, processes) == packed(plan, weights, config, PackingThreads())
        assert not processes.pids


def test_processes_are_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("qwen3-0.6b:2")
    weights = mixtures.made_up(config, None)
    with packing_of(plan_of(config, weights), weights, config) as packing:
        assert isinstance(packing, PackingThreads)
    monkeypatch.setattr(pack_processes, "LEAST_BYTES", 0)
    monkeypatch.setattr(pack_processes, "LEAST_PROCESSORS", 1)
    with packing_of(plan_of(config, weights), weights, config) as packing:
        assert isinstance(packing, PackProcesses)
        assert not packing.pids  # none of them is there before it is needed
