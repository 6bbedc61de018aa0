"""A tape has the model's bytes in the order in which a worker reads them; cached tapes are reused or made again."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from monolane.bench.measure import mixtures, shapes
from monolane.errors import ModelFileError
from monolane.model.huggingface import open_folder
from monolane.model.weights import Bf16Bits, Unquantised
from monolane.program import tape as tape_module
from monolane.program import tape_store
from monolane.program.build import build_program
from monolane.program.interpret import Interpreter
from monolane.program.layout import Layout
from monolane.program.plan import make_plan
from monolane.program.tape import Tape, allocate_tape, matrix_rows, pack_tape
from monolane.program.tape_store import PackingThreads, load_lanes, stream_lanes
from monolane.progress import Silent
from random_models import CASES, random_model

LAYOUT = Layout("test", tile_rows=8, k_block=32)
HALVED = replace(LAYOUT, name="halved", halves_residual=True)


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


class Watched(Unquantised):
    """Weights that count their reads and claim to cost a conversion."""

    converted = True

    def __init__(self, identity: str = "one", fail_at: int | None = None) -> None:
        self.inner = random_model(CASES[0]).weights
        self.identity = identity
        self.reads = 0
        self._fail_at = fail_at

    def shape(self, name: str) -> tuple[int, ...]:
        return self.inner.shape(name)

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        self.reads += 1
        if self.reads == self._fail_at:
            raise ModelFileError("the disk is gone")
        return self.inner.rows(name, start, stop)

    def vector(self, name: str) -> np.ndarray:
        return self.inner.vector(name)


def load(weights: Watched, workers: int = 2, layout: Layout = LAYOUT) -> Tape:
    config = random_model(CASES[0]).config
    (tape,) = load_lanes(make_plan(build_program(config), layout, workers), weights, config, zeros, Silent())
    finish_keeping()
    return tape


def finish_keeping() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("keep tape"):
            thread.join()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case.name)
@pytest.mark.parametrize("workers", [1, 3, 50])
@pytest.mark.parametrize("layout", [LAYOUT, HALVED], ids=lambda layout: layout.name)
def test_tapes_hold_every_row_of_the_model(case, workers: int, layout: Layout) -> None:  # type: ignore[no-untyped-def]
    model = random_model(case)
    plan = make_plan(build_program(model.config), layout, workers)
    tape = allocate_tape(plan, model.weights, zeros)
    pack_tape(tape, model.weights)
    for index, stage in enumerate(plan.program.projections):
        shares = [layout.unpack(tape.segment(worker, index), stage) for worker in range(workers)]
        expected = matrix_rows(stage.matrix, model.weights, 0, stage.matrix.rows)
        np.testing.assert_array_equal(np.concatenate(shares)[: stage.matrix.rows], expected)


@pytest.mark.parametrize(
    ("shape", "mixture"), [("gpt-oss-20b:1", "mxfp4+bf16"), ("qwen3-30b-a3b:1", "q4_k_m"), ("qwen3-30b-a3b:1", None)]
)
def test_experts_are_packed_in_steps_of_any_size(
    shape: str, mixture: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, in pieces, and several in one step."""
    whole = shapes.named(shape)
    assert whole.experts is not None
    small = replace(
        whole, hidden=256, heads=4, kv_heads=2, vocab=64, experts=replace(whole.experts, count=7, chosen=2, ffn=256)
    )
    weights = mixtures.made_up(small, mixture)
    plan = make_plan(build_program(small, formats=weights.format), replace(LAYOUT, whole_blocks=True), 3)
    tapes = []
    for size in (1, 50_000, 1 << 20):
        monkeypatch.setattr(tape_module, "PACK_BYTES", size)
        monkeypatch.setattr(tape_module, "PACK_BYTES_OF_MANY", size)
        tapes.append(allocate_tape(plan, weights, zeros))
        pack_tape(tapes[-1], weights)
    assert any(part.any() for part in tapes[0].workers)
    for other in tapes[1:]:
        for one, two in zip(tapes[0].workers, other.workers, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_kept_tape_serves_any_number_of_workers() -> None:
    first = Watched()
    packed = load(first, workers=2)
    assert first.reads > 0
    again = Watched()
    for workers in (1, 2, 5):
        kept = load(again, workers)
        fresh = allocate_tape(kept.plan, again, zeros)
        pack_tape(fresh, first)
        for ours, theirs in zip(kept.workers, fresh.workers, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert again.reads == 0
    assert packed.nbytes > 0


def stream(weights: Watched, workers: int = 2) -> tuple[list[np.ndarray], np.ndarray | None, list[int]]:
    """Tapes as another memory gets them, the table, and the bytes of each part."""
    config = random_model(CASES[0]).config
    plan = make_plan(build_program(config), LAYOUT, workers)
    tapes, sizes = [zeros(size) for size in plan.tape_bytes], []

    def deliver(lane: int, part: Tape) -> None:
        assert lane == 0
        sizes.append(sum(own.nbytes for own in part.workers))
        for worker, own in enumerate(part.workers):
            tapes[worker][part.begin(worker) : part.begin(worker) + own.nbytes] = own

    (left,) = stream_lanes(plan, weights, config, deliver, Silent(), PackingThreads())
    finish_keeping()
    return tapes, left.table, sizes


def test_a_tape_that_comes_in_parts_is_the_same_and_little_of_it_is_here_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Watched("streamed")
    whole = load(Watched("whole"), workers=3)
    most = whole.nbytes // 4
    monkeypatch.setattr(tape_store, "PART_BYTES", most)
    for source, reads in ((first, True), (Watched("streamed"), False), (Watched("whole"), False)):
        tapes, table, sizes = stream(source, workers=3)
        assert (source.reads > 0) == reads  # what was kept is read by both ways to load
        largest = max(sum(tape[index].size for tape in whole.plan.segments) for index in whole.stages)
        assert len(sizes) > 1
        assert max(sizes) <= max(most, largest)
        for ours, theirs in zip(tapes, whole.workers, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (table is None) == (whole.table is None)
        if table is not None and whole.table is not None:
            np.testing.assert_array_equal(table, whole.table)
    again = Watched("streamed")
    np.testing.assert_array_equal(load(again, workers=5).segment(0, 0), load(Watched("whole"), workers=5).segment(0, 0))
    assert again.reads == 0


def test_a_failure_or_a_full_disk_while_a_tape_comes_in_parts(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_store, "PART_BYTES", 1 << 14)
    with pytest.raises(ModelFileError, match="the disk is gone"):
        stream(Watched(fail_at=5))
    assert not list(own_cache.rglob("*.tiles*"))

    @contextmanager
    def full(path: Path) -> Iterator[object]:
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(tape_store, "atomic_write", full)
    tapes, _, _ = stream(Watched())
    for ours, theirs in zip(tapes, load(Watched()).workers, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_half_tiles_are_not_read_from_a_tape_of_whole_ones() -> None:
    load(Watched())
    halved, again = Watched(), Watched()
    packed = load(halved, layout=HALVED)
    assert halved.reads > 0
    kept = load(again, layout=HALVED)
    assert again.reads == 0
    for ours, theirs in zip(kept.workers, packed.workers, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_interpreter_reads_half_tiles_as_it_reads_whole_ones() -> None:
    tokens = random_model(CASES[0]).tokens[:20]
    whole, halved = (Interpreter([load(Watched(), 3, layout)], 32).logits(tokens) for layout in (LAYOUT, HALVED))
    np.testing.assert_allclose(halved, whole, atol=1e-4)


def test_another_model_or_a_damaged_file_is_packed_anew(own_cache: Path) -> None:
    load(Watched("one"))
    other = Watched("two")
    load(other)
    assert other.reads > 0
    for file in (own_cache / "tapes").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    again = Watched("one")
    load(again)
    assert again.reads > 0


@pytest.mark.parametrize("replaced", ["written over", "put in its place"])
def test_another_file_of_equal_size_and_time_is_packed_anew(tmp_path: Path, replaced: str) -> None:
    """Package managers give every file the same date."""
    folder = tmp_path / "model"
    folder.mkdir()
    original = random_model(CASES[3])
    shutil.copy(original.folder / "config.json", folder)
    tensors = {name: tensor.float() for name, tensor in load_file(original.folder / "model.safetensors").items()}
    path = folder / "model.safetensors"
    tapes = []
    for sign in (1, -1, -1):
        tensors = {name: sign * tensor for name, tensor in tensors.items()}
        target = path if replaced == "written over" else folder / "new"
        save_file(tensors, target)
        os.utime(target, ns=(0, 0))
        target.rename(path)
        config, weights = open_folder(folder)
        assert weights.converted
        plan = make_plan(build_program(config), LAYOUT, 2)
        (tape,) = load_lanes(plan, weights, config, zeros, Silent())
        finish_keeping()
        fresh = allocate_tape(plan, weights, zeros)
        pack_tape(fresh, weights)
        for ours, theirs in zip(tape.workers, fresh.workers, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        tapes.append(tape)
    assert not np.array_equal(tapes[0].workers[0], tapes[1].workers[0])


def test_a_failure_while_packing_is_told_and_leaves_nothing(own_cache: Path) -> None:
    with pytest.raises(ModelFileError, match="the disk is gone"):
        load(Watched(fail_at=5))
    assert not list(own_cache.rglob("*.tiles"))
