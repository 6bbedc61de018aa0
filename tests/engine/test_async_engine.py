"""An engine in its own process: the queue, cancelling, and clients that read fast, slowly or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from engines import answer_of, ask, engine, run, tokens_read, until
from monolane import UsageError
from monolane.engine import answer as answer_room
from monolane.engine.answer import Answer, Queued, Started
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.result import Delta
from monolane.errors import QueueFullError, SlowReaderError
from synthetic_engine import PANGRAM, synthetic_engine


@dataclass
class Shared:
    """An engine for all tests that leave it as it was, and the event loop it lives in."""

    runner: asyncio.Runner
    llm: AsyncEngine

    def run(self, test: Any) -> None:
        run(test, self.runner)
        assert (self.llm.running, self.llm.queue_depth) == (False, 0)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with asyncio.Runner() as runner:

        async def start() -> AsyncEngine:
            llm = synthetic_engine(tokens_per_second=1000, caches=2, context=1024, queue_limit=4)
            await llm.start()
            return llm

        llm = runner.run(start())
        yield Shared(runner, llm)
        runner.run(llm.close())


def test_an_answer_from_another_process(shared: Shared) -> None:
    llm = shared.llm

    async def test() -> None:
        answer = ask(llm, "Hi", logprobs=2, max_tokens=12)
        events = [event async for event in answer]
        assert isinstance(events[0], Started)
        deltas = [event for event in events if isinstance(event, Delta)]
        assert len(deltas) == len(events) - 1
        result = answer.result
        assert "".join(delta.text for delta in deltas) == result.text == PANGRAM[:12]
        assert tuple(i for delta in deltas for i in delta.token_ids) == result.token_ids
        assert tuple(entry for delta in deltas for entry in delta.logprobs or ()) == result.logprobs
        assert (result.finish_reason, result.prompt_tokens, len(result.token_ids)) == ("length", 2, 12)
        assert result.timings.tokens_per_second == pytest.approx(1000)  # the target's own clock
        assert llm.target is not None
        assert (llm.target.name, llm.target.context, llm.target.caches) == ("synthetic", 1024, 2)

    shared.run(test)


def test_one_after_the_other_in_the_order_they_came(shared: Shared) -> None:
    llm, order = shared.llm, []

    async def read(number: int, answer: Answer) -> list[int]:
        positions = []
        async for event in answer:
            if isinstance(event, Queued):
                positions.append(event.position)
            if isinstance(event, Started):
                order.append(number)
        return positions

    async def test() -> None:
        answers = [ask(llm, max_tokens=20) for _ in range(5)]
        assert [answer.position for answer in answers] == [0, 1, 2, 3, 4]
        assert (llm.queue_depth, llm.running) == (4, True)
        positions = await asyncio.gather(*(read(n, answer) for n, answer in enumerate(answers)))
        assert order == [0, 1, 2, 3, 4]
        assert [seen[0] for seen in positions[1:]] == [1, 2, 3, 4]
        assert all(seen == sorted(seen, reverse=True) for seen in positions)
        waits = [answer.result.timings.queue_s for answer in answers]
        assert waits == sorted(waits)
        assert len(set(waits)) == 5  # each has waited for one answer more

    shared.run(test)


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(shared: Shared) -> None:
    llm = shared.llm

    async def test() -> None:
        refused_before = llm.counters.refused
        running, first, *others = (ask(llm) for _ in range(5))
        with pytest.raises(QueueFullError, match="4 requests") as refused:
            ask(llm)
        assert refused.value.retry_after_s >= 1
        first.cancel()
        assert [answer.position for answer in others] == [1, 2, 3]
        assert (await first.whole()).finish_reason == "abort"
        last = ask(llm)
        assert last.position == 4
        assert llm.counters.refused == refused_before + 1
        for answer in (last, *others, running):
            answer.cancel()
        await running.whole()

    shared.run(test)


async def cancel_at(llm: AsyncEngine, count: int) -> None:
    answer, following = ask(llm, "x" * 500), ask(llm, "y", max_tokens=3)
    await anext(answer) if count == 0 else await tokens_read(answer, count)
    answer.cancel()
    answer.cancel()
    result = await answer.whole()
    assert result.finish_reason == "abort"
    assert count <= len(result.token_ids) < 400
    assert (await following.whole()).text == PANGRAM[:3]


@pytest.mark.parametrize("count", [1, 30])
def test_cancelling_frees_the_place_for_the_next(shared: Shared, count: int) -> None:
    shared.run(lambda: cancel_at(shared.llm, count))


def test_cancelling_within_the_prompt() -> None:
    async def test() -> None:
        async with engine(prefill_tokens_per_second=5) as llm:  # this prompt takes 100 s
            await cancel_at(llm, 0)

    run(test)


def test_leaving_the_block_cancels(shared: Shared) -> None:
    llm = shared.llm

    async def test() -> None:
        async with ask(llm) as answer:
            await tokens_read(answer, 1)
        assert (await answer.whole()).finish_reason == "abort"
        answer = ask(llm)
        task = asyncio.create_task(answer.whole())
        await asyncio.sleep(0.01)
        task.cancel()
        await until(lambda: not llm.running)
        assert answer.result.finish_reason == "abort"

    shared.run(test)


def test_a_reader_that_does_not_read_holds_nobody_up_and_gets_all_in_one_piece(shared: Shared) -> None:
    llm = shared.llm

    async def test() -> None:
        lazy = ask(llm, max_tokens=200)
        assert (await answer_of(llm, max_tokens=10)).text == PANGRAM[:10]
        events = [event async for event in lazy]
        assert isinstance(events[0], Started)
        assert [len(event.token_ids) for event in events if isinstance(event, Delta)] == [200]

    shared.run(test)


def test_what_nobody_reads_is_bounded(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_room, "MAX_UNREAD", 100)
    llm = shared.llm

    async def test() -> None:
        failed_before = llm.counters.failed
        lazy, with_logprobs = ask(llm), ask(llm, max_tokens=40, logprobs=2)
        reading = ask(llm, max_tokens=150)
        assert len((await reading.whole()).token_ids) == 150
        for answer in (lazy, with_logprobs):  # 40 tokens of 1, and 3 for each one's logprobs, are too many as well
            with pytest.raises(SlowReaderError, match="not read"):
                await answer.whole()
        assert llm.counters.failed == failed_before + 2

    shared.run(test)


def test_stop_strings_end_the_run_in_the_other_process(shared: Shared) -> None:
    async def test() -> None:
        result = await answer_of(shared.llm, stop="fox")
        assert (result.text, result.finish_reason) == ("The quick brown ", "stop")

    shared.run(test)


def test_conversations_stay_resident_across_requests(shared: Shared) -> None:
    llm = shared.llm

    async def cached(prompt: str) -> int:
        return (await answer_of(llm, prompt, max_tokens=1)).timings.cached_tokens

    async def test() -> None:
        hits_before = llm.counters.cache_hits
        assert [await cached(prompt) for prompt in ("First.", "Second.")] == [0, 0]
        assert await cached("First. More.") == len("First.")
        assert await cached("Second. More.") == len("Second.")
        assert await cached("Third.") == 0  # takes the place of the first
        assert await cached("Second. More. And more.") == len("Second. More.")
        assert await cached("First. More.") == 0
        assert llm.counters.cache_hits == hits_before + 3

    shared.run(test)


def test_mistakes_are_raised_before_anything_waits(shared: Shared) -> None:
    llm = shared.llm

    async def test() -> None:
        requests_before = llm.counters.requests
        for bad in ("", "x" * 1024):
            with pytest.raises(UsageError):
                ask(llm, bad)
        with pytest.raises(UsageError, match="logit_bias"):
            ask(llm, logit_bias={9999: 1})
        with pytest.raises(UsageError, match="message"):
            await llm.chat([])
        assert llm.counters.requests == requests_before
        answer = ask(llm, max_tokens=5)
        with pytest.raises(UsageError, match="not come to its end"):
            _ = answer.result
        await answer.whole()

    shared.run(test)


def test_chat_and_completion(shared: Shared) -> None:
    async def test() -> None:
        chat = await shared.llm.chat([{"role": "user", "content": "Hi"}])
        text = await shared.llm.complete("Hi")
        assert (chat.prompt_tokens, text.prompt_tokens) == (len("[user]Hi[assistant]"), 2)
        text.cancel()
        chat.cancel()
        await chat.whole()

    shared.run(test)
