"""A process that hangs is noticed within a second, and no other is taken for dead; what the server process leaves to
the engine process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import made_up_engine
import monolane
from engines import ask, run, tokens_read, until
from fake_model import fake_model
from fake_target import FakeTarget
from monolane.engine import async_engine, core, engine_process
from monolane.engine.async_engine import AsyncEngine
from monolane.errors import EngineFailedError
from monolane.target.cpu.runtime import DEADLINE_S, NAMED_S
from thorough import thorough


def test_every_watch_bites_within_a_second() -> None:
    look = core.BEAT_S
    assert FakeTarget.stall_s < 1.0 - look
    if sys.platform == "linux":
        assert async_engine.STALL_S + engine_process.TICK_S < 1.0  # the process
        assert DEADLINE_S < DEADLINE_S + NAMED_S < 1.0 - look


def test_the_watch_over_a_gpu_too() -> None:
    pytest.importorskip("cuda.bindings", reason="needs the CUDA packages, and no GPU")
    from monolane.target.cuda.launcher import DEADLINE_S
    from monolane.target.cuda.runtime import STALL_S

    assert DEADLINE_S < STALL_S < 1.0 - core.BEAT_S


@thorough
def test_a_cpu_worker_that_stalls_is_named_and_the_next_process_answers(tmp_path: Path) -> None:
    options = json.dumps({"device": "cpu", "stalls_once": str(tmp_path / "stalled")})
    command = [sys.executable, made_up_engine.__file__, options]

    async def test() -> None:
        engine = AsyncEngine(lambda _: fake_model(), lambda _: command)
        await engine.start()
        try:
            with pytest.raises(EngineFailedError, match="Worker 1 got stuck"):
                await ask(engine).whole()
            await until(lambda: engine.state.status == "ready")
            result = await ask(engine, "Hi", max_tokens=40, ignore_eos=True).whole()
            assert (result.finish_reason, len(result.token_ids)) == ("length", 40)
        finally:
            await engine.close(drain_s=0)

    run(test, seconds=120)  # two kernels may have to be compiled


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lane_that_dies_or_hangs_is_named_and_the_next_processes_answer(how: signal.Signals) -> None:
    if sys.platform != "linux":
        pytest.skip("lanes apart need Linux")
    command = [sys.executable, made_up_engine.__file__, json.dumps({"device": "cpu", "lanes_apart": 3})]

    def lanes_of(pid: int | None) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def test() -> None:
        engine = AsyncEngine(lambda _: fake_model(), lambda _: command)
        await engine.start()
        try:
            lanes = lanes_of(engine.state.core_pid)
            assert len(lanes) == 2
            answer = ask(engine, max_tokens=4000, ignore_eos=True)
            await tokens_read(answer, 1)
            os.kill(lanes[1], how)
            with pytest.raises(EngineFailedError, match="lane 2"):
                await answer.whole()
            await until(lambda: engine.state.status == "ready")
            result = await ask(engine, "Hi", max_tokens=40, ignore_eos=True).whole()
            assert (result.finish_reason, len(result.token_ids)) == ("length", 40)
            # Nobody is left: the system itself ends a stopped process whose parent is gone.
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in lanes))
        finally:
            await engine.close(drain_s=0)

    run(test, seconds=120)  # a kernel may have to be compiled


def test_the_process_of_the_server_loads_no_driver() -> None:
    code = "import sys, monolane.serve.run; print(*[name for name in sys.modules if name.split('.')[0] == 'cuda'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == ""


def test_nothing_is_pickled() -> None:
    sources = list(Path(monolane.__file__).parent.rglob("*.py"))
    assert len(sources) > 50
    pickling = re.compile(r"^\s*(import|from) (pickle|marshal|shelve|dill|multiprocessing|joblib)\b", re.MULTILINE)
    assert [path.name for path in sources if pickling.search(path.read_text())] == []
