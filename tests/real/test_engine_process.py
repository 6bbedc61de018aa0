"""The default model in a process of its own, as the server has it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import llguidance
import pytest

from monolane import LLM, SamplingParams
from monolane.engine.async_engine import AsyncEngine
from monolane.errors import EngineFailedError, UsageError

ASKED = [{"role": "user", "content": "Name a city and its population."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}


def test_the_same_answers_as_in_process_also_in_form_and_after_a_crash(default_model_path: Path) -> None:
    short = SamplingParams(max_tokens=12)
    with LLM(default_model_path, device="cpu", context=512) as llm:
        expected = llm.chat(ASKED, short)

    async def talk() -> None:
        engine = AsyncEngine.for_model(default_model_path, device="cpu", context=512)
        await engine.start()
        try:
            first = await (await engine.chat(ASKED, short)).whole()
            assert first.token_ids == expected.token_ids
            again = await (await engine.chat(ASKED, short)).whole()
            assert again.token_ids == expected.token_ids
            assert again.timings.cached_tokens == again.prompt_tokens - 1

            form = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA)
            formed = await (await engine.chat(ASKED, SamplingParams(max_tokens=60), grammar=form)).whole()
            value = json.loads(formed.text)
            assert (set(value), formed.finish_reason) == ({"city", "population"}, "stop")

            answer = await engine.chat(ASKED)
            assert engine.state.core_pid is not None
            os.kill(engine.state.core_pid, signal.SIGKILL)
            with pytest.raises(EngineFailedError, match="SIGKILL"):
                await answer.whole()
            while engine.state.status != "ready":
                await asyncio.sleep(0.05)
            recovered = await (await engine.chat(ASKED, short)).whole()
            assert recovered.token_ids == expected.token_ids
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(talk(), 120))


def test_what_the_process_finds_wrong_is_raised_here(default_model_path: Path) -> None:
    async def start() -> None:
        engine = AsyncEngine.for_model(default_model_path, device="tpu")
        with pytest.raises(UsageError, match="no device 'tpu'"):
            await engine.start()
        await engine.close()

    asyncio.run(start())
