"""The engine process from loading to closing, and its failures in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from engines import answer_of, ask, engine, run, tokens_read, until
from monolane import UsageError
from monolane.engine import engine_process, starvation
from monolane.errors import EngineFailedError, NotReadyError
from synthetic_engine import PANGRAM, synthetic_engine


def alive(pid: int) -> bool:
    """Whether it runs; a zombie that waits to be buried does not. Elsewhere than on Linux, a zombie counts as well."""
    if not Path("/proc/self/stat").exists():
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_not_ready_while_it_loads_then_ready_then_closed() -> None:
    async def test() -> None:
        llm = synthetic_engine(load_s=0.5)
        starting = asyncio.create_task(llm.start())
        await asyncio.sleep(0)
        with pytest.raises(NotReadyError, match="loading"):
            ask(llm)
        await until(lambda: llm.state.label == "loading nothing" and llm.state.done_bytes > 0)
        assert (llm.state.status, llm.state.total_bytes) == ("loading", 20)
        await starting
        assert (llm.state.status, llm.state.label) == ("ready", None)
        pid = llm.state.core_pid
        assert pid is not None
        assert alive(pid)
        await llm.close()
        await llm.close()
        assert llm.state.status == "closed"
        assert not alive(pid)
        with pytest.raises(NotReadyError, match="closed"):
            ask(llm)
        with pytest.raises(NotReadyError, match="closed"):
            await llm.complete("Hi")

    run(test)


def test_closing_while_it_loads() -> None:
    async def test() -> None:
        llm = synthetic_engine(load_s=20)
        starting = asyncio.create_task(llm.start())
        await until(lambda: llm.state.label is not None)
        pid = llm.state.core_pid
        assert pid is not None
        await llm.close()
        with pytest.raises(NotReadyError, match="closed"):
            await starting
        assert not alive(pid)

    run(test)


def test_closing_lets_those_end_who_have_begun() -> None:
    async def test() -> None:
        async with engine(tokens_per_second=1000) as llm:
            running, waiting = ask(llm, max_tokens=200), ask(llm, max_tokens=200)
            closing = asyncio.create_task(llm.close(drain_s=20))
            await asyncio.sleep(0)
            with pytest.raises(NotReadyError):
                ask(llm)
            await closing
            for answer in (running, waiting):
                assert (await answer.whole()).finish_reason == "length"

    run(test)


def test_closing_ends_what_takes_too_long() -> None:
    async def test() -> None:
        async with engine(tokens_per_second=100) as llm:
            running, waiting = ask(llm), ask(llm)
            await tokens_read(running, 1)
            await llm.close(drain_s=0)
            assert (await running.whole()).finish_reason == "abort"
            with pytest.raises(NotReadyError):
                await waiting.whole()

    run(test)


def test_killed_in_the_middle_of_an_answer() -> None:
    async def test() -> None:
        async with engine(tokens_per_second=1000) as llm:
            answer, waiting = ask(llm), ask(llm, max_tokens=10)
            await tokens_read(answer, 5)
            pid = llm.state.core_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineFailedError, match="SIGKILL"):
                await answer.whole()
            assert llm.state.status == "restarting"
            assert "SIGKILL" in str(llm.state.problem)
            with pytest.raises(NotReadyError, match="restarting"):
                ask(llm)
            assert (await waiting.whole()).text == PANGRAM[:10]  # it has waited for the new process
            assert (llm.state.status, llm.state.restarts, llm.state.problem) == ("ready", 1, None)
            assert llm.state.core_pid != pid
            assert (await answer_of(llm, "Hi!", max_tokens=3)).timings.cached_tokens < 3

    run(test)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash@3", "SIGSEGV"),
        ("error@3", "Worker 1 got stuck"),
        ("stall@3", "no step"),
        ("stall@0", "no step"),
        ("freeze@3", "no sign of life"),
    ],
)
def test_a_failure_is_an_error_for_that_request_and_then_it_serves_again(
    fault: str, message: str, tmp_path: Path
) -> None:
    async def test() -> None:
        async with engine(faults=fault, only_once=str(tmp_path / "once"), tokens_per_second=1000) as llm:
            answer = ask(llm)
            with pytest.raises(EngineFailedError, match=message):
                await answer.whole()
            assert llm.state.status == "restarting"
            await until(lambda: llm.state.status == "ready")
            assert (await answer_of(llm, max_tokens=10)).text == PANGRAM[:10]
            assert (llm.counters.restarts, llm.counters.failed) == (1, 1)

    run(test)


def test_a_process_that_is_only_busy_is_left_alone() -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc")

    async def test() -> None:
        async with engine(faults="busy@3", tokens_per_second=1000) as llm:
            assert (await answer_of(llm, max_tokens=10)).text == PANGRAM[:10]
            assert llm.counters.restarts == 0

    run(test)


def test_a_process_that_is_busy_without_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    monkeypatch.setattr(starvation, "ENOUGH_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        watch = starvation.Starvation(process.pid)
        try:
            assert watch.is_likely()
            while watch.is_likely():
                time.sleep(0.1)
            watch.restart()
            assert watch.is_likely()
            os.kill(process.pid, signal.SIGSTOP)
            while watch.is_likely():
                time.sleep(0.1)
        finally:
            process.kill()
        process.wait()
        assert not watch.is_likely()


def test_a_process_whose_processor_was_taken_away_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host of a virtual machine does that. Here the process is stopped until somebody visits the processors."""
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    monkeypatch.setattr(engine_process, "visit_processors", lambda pid: os.kill(pid, signal.SIGCONT))

    async def test() -> None:
        async with engine(faults="freeze@3", tokens_per_second=1000) as llm:
            assert (await answer_of(llm, max_tokens=10)).text == PANGRAM[:10]
            assert llm.counters.restarts == 0

    run(test)


def test_visiting_all_processors_leaves_the_visitor_free() -> None:
    if not starvation.CAN_TELL:
        pytest.skip("nobody visits them there")
    before = os.sched_getaffinity(0)
    starvation.visit_processors(os.getpid())
    starvation.visit_processors(2**22 + 1)  # no process has this number
    assert os.sched_getaffinity(0) == before


def test_killed_while_idle() -> None:
    async def test() -> None:
        async with engine() as llm:
            assert llm.state.core_pid is not None
            os.kill(llm.state.core_pid, signal.SIGKILL)
            await until(lambda: llm.state.status == "restarting")
            await until(lambda: llm.state.status == "ready")
            assert (await answer_of(llm, max_tokens=10)).text == PANGRAM[:10]

    run(test)


def test_those_who_wait_are_told_when_it_does_not_come_back(tmp_path: Path) -> None:
    switch = tmp_path / "load"  # while this file is there, there are no faults

    async def test() -> None:
        switch.touch()
        async with engine(faults="load", only_once=str(switch), tokens_per_second=100) as llm:
            answer, waiting = ask(llm), ask(llm)
            switch.unlink()
            assert llm.state.core_pid is not None
            os.kill(llm.state.core_pid, signal.SIGKILL)
            with pytest.raises(EngineFailedError):
                await answer.whole()
            with pytest.raises(NotReadyError, match="told not to load"):
                await waiting.whole()
            await until(lambda: llm.state.status == "ready")  # it goes on trying, and the file is there again

    run(test)


@pytest.mark.parametrize(("fault", "error"), [("load", UsageError), ("load-crash", EngineFailedError)])
def test_what_cannot_be_loaded_at_all_is_raised(fault: str, error: type[Exception]) -> None:
    async def test() -> None:
        llm = synthetic_engine(faults=fault)
        with pytest.raises(error, match=r"told not to load|SIGABRT"):
            await llm.start()
        assert llm.state.status == "failed"
        assert llm.state.core_pid is None
        with pytest.raises(NotReadyError):
            ask(llm)
        await llm.close()

    run(test)


def test_no_engine_outlives_a_supervisor_that_was_killed() -> None:
    code = (
        "import asyncio\n"
        "from synthetic_engine import synthetic_engine\n"
        "async def main():\n"
        "    llm = synthetic_engine(tokens_per_second=100)\n"
        "    await llm.start()\n"
        "    answer = await llm.complete('Hi')\n"
        "    await anext(answer)\n"
        "    print(llm.state.core_pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=paths) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        os.kill(pid, signal.SIGTERM)  # it follows its parent, and nobody else
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert alive(pid)
        parent.kill()
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.05)
    pytest.fail("the engine lives on")
