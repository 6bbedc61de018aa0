"""The life of a request on the CPU target: tokens as they come, abort, stuck workers, limits, the compiler."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from monolane.errors import ResourceError, TargetError, UsageError
from monolane.program.build import build_program
from monolane.program.sample import Sampling
from monolane.target import open_target, opening
from monolane.target.base import Finish, Request
from monolane.target.cpu import compiler as compiling
from monolane.target.cpu import machine
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.generate import generate
from monolane.target.cpu.memory import allocate
from monolane.target.cpu.native import Library, Place
from monolane.target.cpu.runtime import CpuTarget
from monolane.target.interpreter import InterpreterTarget
from random_models import CASES, random_model
from thorough import seldom

MODEL = random_model(CASES[3])  # the smallest
LONG = Request(MODEL.tokens[:4], 0, 500, frozenset(), Sampling())


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, total_bytes: int, label: str) -> None: ...
    def advance(self, bytes_done: int) -> None: ...
    def done(self) -> None: ...
    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_same_request_twice_gives_the_same_tokens() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    runs = [[token.id for batch in target.run(LONG) for token in batch] for _ in range(3)]
    assert len(runs[0]) == 500
    assert runs[0] == runs[1] == runs[2]
    target.close()


def test_token_times_rise_and_begin_after_the_start() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    run = target.run(LONG)
    times = [token.time_ns for batch in run for token in batch]
    assert run.start_ns < times[0]
    assert times == sorted(times)
    target.close()


def test_abort_ends_the_run_and_the_next_one_is_untouched() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    complete = [token.id for batch in target.run(LONG) for token in batch]
    for after in range(5):
        run = target.run(LONG)
        seen: list[int] = []
        for batch in run:
            seen += [token.id for token in batch]
            if len(seen) > after:
                run.abort()
        assert seen == complete[: len(seen)]
        assert run.finish in (Finish.ABORT, Finish.LENGTH)
        run.abort()  # after the end: nothing happens
    assert [token.id for batch in target.run(LONG) for token in batch] == complete
    target.close()


def test_one_request_at_a_time_and_none_after_closing() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=1)
    run = target.run(LONG)
    with pytest.raises(TargetError, match="still running"):
        target.run(LONG)
    for _ in run:
        pass
    target.close()
    target.close()
    with pytest.raises(TargetError, match="closed"):
        target.run(LONG)


def test_closing_while_a_request_runs_ends_it() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    run = target.run(LONG)
    target.close()
    run.abort()
    with pytest.raises(TargetError, match="closed"):
        list(run)


def test_aborting_a_request_that_has_ended_leaves_the_next_one_alone() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    ended = target.run(LONG)
    complete = [token.id for batch in ended for token in batch]
    ended.finish = None  # as if it had ended between the look and the call  # type: ignore[misc]
    following = target.run(LONG)
    ended.abort()
    assert [token.id for batch in following for token in batch] == complete
    target.close()


@pytest.mark.parametrize("stage", [2, seldom(0), seldom(5)])
def test_a_stuck_worker_is_named_and_nobody_waits_for_it(stage: int) -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=3)
    assert isinstance(target, CpuTarget)
    (tape,) = target._tapes
    compiler = find_compiler()
    assert compiler is not None
    source = generate(tape.plan.program, stall=(1, stage, 3600))
    library = Library(build(source, compiler, machine.vector_level()))
    stuck = CpuTarget(library, [tape], 128, Place(tape.plan.workers), "stalled", deadline_s=0.2)
    name = tape.plan.program.stages[stage].name
    told: list[str] = []

    def ask() -> None:
        for _ in range(2):
            try:
                list(stuck.run(LONG))
            except TargetError as error:
                told.append(error.message)
        stuck.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)  # the worker sleeps for an hour: whoever waits for it hangs
    assert not asking.is_alive()
    assert len(told) == 2
    assert re.search(f"Worker 1 got stuck: worker [02] waited for it at stage '{name}'", told[0])
    assert "an earlier one got stuck" in told[1]
    target.close()


def test_logits_that_are_not_numbers_end_the_run_with_an_error() -> None:
    target = open_target(MODEL.config, MODEL.weights, workers=2)
    assert isinstance(target, CpuTarget)
    target._tapes[0].constants.values[:] = np.nan
    with pytest.raises(TargetError, match="not numbers"):
        list(target.run(LONG))
    target.close()


def test_limits_are_checked_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "allocate", lambda size: pytest.fail("allocated"))
    with pytest.raises(UsageError, match="513 tokens is not possible"):
        open_target(MODEL.config, MODEL.weights, context=513)
    with pytest.raises(UsageError, match="0 workers"):
        open_target(MODEL.config, MODEL.weights, workers=0)
    with pytest.raises(UsageError, match="too many"):
        open_target(MODEL.config, MODEL.weights, workers=1000)
    with pytest.raises(UsageError, match="no device 'tpu'"):
        open_target(MODEL.config, MODEL.weights, device="tpu")
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    with pytest.raises(ResourceError, match=r"512 tokens of context.*only 1.0 kB"):
        open_target(MODEL.config, MODEL.weights)


def test_without_a_compiler_the_interpreter_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_compiler", lambda: None)
    notes = Notes()
    target = open_target(MODEL.config, MODEL.weights, progress=notes)
    assert isinstance(target, InterpreterTarget)
    assert "No C++ compiler" in notes.notes[0]


def test_more_workers_than_cores_is_noted() -> None:
    notes = Notes()
    cores = len(machine.processors())
    open_target(MODEL.config, MODEL.weights, workers=cores + 1, progress=notes).close()
    assert f"share {cores} cores" in notes.notes[0]


def fake_compiler(folder: Path, body: str) -> Path:
    script = folder / "fake-cxx"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_compiler()
    assert real is not None
    kernel = build(generate(build_program(MODEL.config)), real, machine.vector_level())
    log = tmp_path / "log"
    copy = f'for last; do :; done; cp {kernel} "$last"'  # the last word is where the library goes
    script = fake_compiler(tmp_path, f'echo called >> {log}\ncase "$1" in --version) echo 1;; *) {copy};; esac')
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        open_target(MODEL.config, MODEL.weights, workers=1).close()
    assert len(log.read_text().split()) == 3  # its version twice, and one compilation
    kernel, seal = sorted((tmp_path / "cache" / "kernels").iterdir())
    assert kernel.suffix in (".so", ".dylib")
    assert seal.name == f"{kernel.name}.sha256"


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_compiler(tmp_path, 'case "$1" in --version) echo 1;; *) echo "it hurts" >&2; exit 1;; esac')
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TargetError, match=r"(?s)did not compile.*it hurts"):
        open_target(MODEL.config, MODEL.weights)
    assert not list((tmp_path / "cache" / "kernels").iterdir())
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(TargetError, match="does not run"):
        open_target(MODEL.config, MODEL.weights)


def test_the_compiler_of_a_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    tried: list[tuple[str, ...]] = []
    monkeypatch.setattr(compiling, "_try", lambda command: tried.append(command))
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    assert find_compiler() is None
    assert tried[0][1:] == ("-m", "ziglang", "c++")


@pytest.mark.parametrize("level", [seldom("sse2"), seldom("avx2")])
def test_narrower_vectors_give_the_same_results(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not machine.vector_level().flags:
        pytest.skip("this processor has no wider vectors to compare with")
    monkeypatch.delenv("CXX", raising=False)  # once without the headers that tests begin with
    flags = {"sse2": (), "avx2": ("-mavx2", "-mfma", "-mbmi2", "-mf16c")}[level]
    wide = open_target(MODEL.config, MODEL.weights, workers=1)
    monkeypatch.setattr(machine, "vector_level", lambda: machine.VectorLevel(level, flags))
    narrow = open_target(MODEL.config, MODEL.weights, workers=1)
    np.testing.assert_allclose(narrow.logits(MODEL.tokens), wide.logits(MODEL.tokens), atol=1e-2)
    wide.close()
    narrow.close()


def test_memory_comes_zeroed_and_writable() -> None:
    memory = allocate(3 * os.sysconf("SC_PAGESIZE") + 5)
    assert not memory.any()
    memory[-1] = 1
    assert allocate(0).nbytes == 0
