"""Tapes that processes pack are those that threads pack; where a process fails, threads do its work."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane.bench.measure import checkpoint, mixtures, shapes
from monolane.bench.measure.anonymous_memory import anonymous_bytes
from monolane.bench.measure.subject import find_model
from monolane.errors import ModelFileError, TargetError
from monolane.model.config import ModelConfig
from monolane.model.load import load_model
from monolane.model.quantise import quantised
from monolane.model.weights import Weights
from monolane.program import tape_store
from monolane.program.plan import Plan
from monolane.program.tape import Tape
from monolane.program.tape_store import Packing, PackingThreads, stream_lanes
from monolane.progress import Silent
from monolane.target.cuda import pack_processes
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.pack_processes import PackProcesses, described, packing_of

WORKERS = 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))


def small(name: str) -> ModelConfig:
    whole = shapes.named(name)
    experts = replace(whole.experts, count=5, chosen=2, ffn=256) if whole.experts else None
    ffn = 256 if whole.family == "gpt_oss" else 512  # it has one size for both
    return replace(whole, hidden=256, heads=4, kv_heads=2, ffn=ffn, vocab=96, experts=experts)


def plan_of(config: ModelConfig, weights: Weights, lanes: int = 1) -> Plan:
    return cuda_plan(config, WORKERS * lanes, lanes, weights.format)


def processes_of(plan: Plan, weights: Weights, count: int = 2) -> PackProcesses:
    known = described(weights)
    assert known
    return PackProcesses(plan, *known, count)


class Counted(Silent):
    """Progress that counts."""

    advanced = 0

    def advance(self, amount: int) -> None:
        self.advanced += amount


def packed(
    plan: Plan, weights: Weights, config: ModelConfig, packing: Packing, progress: Silent | None = None
) -> list[list[bytes]]:
    found: list[list[bytes]] = []

    def deliver(lane: int, part: Tape) -> None:
        found.append([own.tobytes() for own in part.workers])

    stream_lanes(plan, weights, config, deliver, progress or Silent(), packing)
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
    counted, again = Counted(), Counted()
    expected = packed(plan, weights, model.config, PackingThreads(), counted)
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "another"))  # that has not kept the tape
    with processes_of(plan, weights, 3) as processes:
        assert packed(plan, weights, model.config, processes, again) == expected
        assert len(processes.pids) == 3
    assert any(np.frombuffer(own, np.uint8).any() for own in expected[0])
    assert again.advanced == counted.advanced


def test_made_up_weights_are_made_again() -> None:
    _, model = find_model(None, "smollm2-135m:1", Silent(), "q4_1")
    plan = plan_of(model.config, model.weights)
    with processes_of(plan, model.weights) as processes:
        found = packed(plan, model.weights, model.config, processes)
        assert len(processes.pids) == 2
        with_processes = anonymous_bytes()
    alone = anonymous_bytes()
    if with_processes is not None and alone is not None:
        assert with_processes > alone
    assert found == packed(plan, model.weights, model.config, PackingThreads())


def test_what_is_wrong_with_a_file_is_told(tmp_path: Path) -> None:
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan = plan_of(model.config, model.weights)
    with processes_of(plan, model.weights) as processes:
        packed(plan, model.weights, model.config, processes)
        for file in (tmp_path / "model").glob("*.safetensors"):
            os.truncate(file, 5000)
        with pytest.raises(ModelFileError, match="ends too early"):
            packed(plan, model.weights, model.config, processes)


@pytest.mark.parametrize("by", ["threads", "processes"])
def test_a_part_stays_until_it_has_been_copied(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is packed meanwhile. Here every projection is a part, and a copy takes longer than packing."""
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan = plan_of(model.config, model.weights)
    monkeypatch.setattr(tape_store, "PART_BYTES", 1)
    expected, found = packed(plan, model.weights, model.config, PackingThreads()), []

    def deliver(lane: int, part: Tape) -> None:
        time.sleep(0.05)
        found.append([own.tobytes() for own in part.workers])

    packing = processes_of(plan, model.weights) if by == "processes" else nullcontext(PackingThreads())
    with packing as packs:
        stream_lanes(plan, model.weights, model.config, deliver, Silent(), packs)
    assert found == expected
    assert len(expected) == len(plan.program.projections)


def test_a_copy_that_fails_is_an_error(tmp_path: Path) -> None:
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan = plan_of(model.config, model.weights)

    def deliver(lane: int, part: Tape) -> None:
        raise TargetError("The device is gone.", "Start again.")

    with pytest.raises(TargetError, match="The device is gone"):
        stream_lanes(plan, model.weights, model.config, deliver, Silent(), PackingThreads())


@pytest.mark.parametrize("reason", ["killed", "stopped", "another plan", "no start"])
def test_threads_pack_where_processes_fail(reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan, counted = plan_of(model.config, model.weights), Counted()
    expected = packed(plan, model.weights, model.config, PackingThreads(), counted)
    known = described(model.weights)
    assert known
    main, source = known
    if reason == "another plan":  # the files have changed meanwhile
        folder_of(small("qwen3-0.6b:1"), tmp_path / "other")
        source = {"path": str(tmp_path / "other")}
    if reason == "no start":
        main = "monolane.nothing"
    again = Counted()
    with PackProcesses(plan, main, source, 2) as processes:
        if reason in ("killed", "stopped"):
            packed(plan, model.weights, model.config, processes)
            os.kill(processes.pids[1], signal.SIGKILL if reason == "killed" else signal.SIGSTOP)
        if reason == "stopped":
            monkeypatch.setattr(pack_processes, "ANSWER_S", 0.5)
        assert packed(plan, model.weights, model.config, processes, again) == expected
        assert not processes.pids
    assert again.advanced == counted.advanced


def test_processes_are_for_large_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = load_model(folder_of(small("qwen3-0.6b:2"), tmp_path / "model"))
    plan = plan_of(model.config, model.weights)
    with packing_of(plan, model.weights) as packing:
        assert isinstance(packing, PackingThreads)
    monkeypatch.setattr(pack_processes, "LEAST_BYTES", 0)
    monkeypatch.setattr(pack_processes, "LEAST_PROCESSORS", 1)
    with packing_of(plan, model.weights) as packing:
        assert isinstance(packing, PackProcesses)
        assert not packing.pids  # none of them is there before it is needed
    with packing_of(plan, mixtures.made_up(model.config, None)) as packing:  # which no other process can make
        assert isinstance(packing, PackingThreads)
