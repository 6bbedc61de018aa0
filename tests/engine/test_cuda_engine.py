"""The engine on a GPU, in its own process under the supervisor: it streams, stops, and restarts after a kill.

``python -m pytest tests/engine/test_cuda_engine.py`` needs a GPU, and of the packages numpy, tokenizers, jinja2 and
msgspec: nothing of a web server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("msgspec", reason="messages between the engine's process and its supervisor need msgspec")

import made_up_engine
from engines import ask, run, tokens_read, until
from fake_model import fake_model
from monolane.engine.async_engine import AsyncEngine
from monolane.errors import EngineFailedError

DEVICE = os.environ.get("MONOLANE_TEST_DEVICE", "cuda")  # cpu: to try the test itself
LOAD_S = 300.0


def has_gpu() -> bool:
    """Asked in another process: this one never touches the driver."""
    code = "from monolane.target.cuda.opening import find_gpu; raise SystemExit(find_gpu() is None)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cpu" and not has_gpu(), reason="needs an NVIDIA GPU that the kernel runs on"),
]


@asynccontextmanager
async def engine() -> AsyncIterator[AsyncEngine]:
    """SmolLM2's shape with made-up weights, on the GPU."""
    command = [sys.executable, made_up_engine.__file__, json.dumps({"device": DEVICE})]
    made = AsyncEngine(lambda _: fake_model(), lambda _: command)
    await made.start()
    try:
        yield made
    finally:
        await made.close(drain_s=0)


async def answer(llm: AsyncEngine, prompt: str = "Hello there", tokens: int = 200) -> tuple[int, ...]:
    result = await ask(llm, prompt, max_tokens=tokens, ignore_eos=True).whole()
    assert (result.finish_reason, len(result.token_ids)) == ("length", tokens)
    return result.token_ids


def test_tokens_come_stop_and_come_again_after_kill_9() -> None:
    async def test() -> None:
        async with engine() as llm:
            assert llm.target is not None
            assert llm.target.name.startswith(DEVICE)
            first = await answer(llm)
            again = await answer(llm)  # from what is in the cache: on a GPU its last bits may differ
            assert await answer(llm) == again
            assert DEVICE != "cpu" or again == first

            # a client that goes away: the next one in the queue is served
            left, waiting = ask(llm, "Go on", ignore_eos=True), ask(llm, max_tokens=5, ignore_eos=True)
            await tokens_read(left, 20)
            left.cancel()
            assert (await left.whole()).finish_reason == "abort"
            assert len((await waiting.whole()).token_ids) == 5

            # kill -9 in the middle of an answer, with somebody in the queue
            killed, waiting = ask(llm, "Go on", ignore_eos=True), ask(llm, "Wait", max_tokens=5, ignore_eos=True)
            await tokens_read(killed, 20)
            pid = llm.state.core_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineFailedError, match="SIGKILL"):
                await killed.whole()
            assert len((await waiting.whole()).token_ids) == 5
            assert llm.state.core_pid != pid
            assert (llm.state.status, llm.state.restarts) == ("ready", 1)
            assert await answer(llm) == first  # nothing of it is in the new process's cache

    run(test, seconds=LOAD_S)


def test_a_process_that_is_halted_is_given_up_and_replaced() -> None:
    async def test() -> None:
        async with engine() as llm:
            first = await answer(llm)
            halted = ask(llm, "Go on", ignore_eos=True)
            await tokens_read(halted, 20)
            pid = llm.state.core_pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineFailedError, match="no sign of life"):
                await halted.whole()
            await until(lambda: llm.state.status == "ready")
            assert await answer(llm) == first

    run(test, seconds=LOAD_S)


def test_several_conversations_stay_resident() -> None:
    async def test() -> None:
        async with engine() as llm:
            assert llm.target is not None
            texts = ["First. " * 20, "Second. " * 20]
            for _ in range(2):
                for text in texts:
                    result = await ask(llm, text, max_tokens=20, ignore_eos=True).whole()
            expected = len(texts[1]) - 1 if llm.target.caches > 1 else 0
            assert result.timings.cached_tokens == expected

    run(test, seconds=LOAD_S)
