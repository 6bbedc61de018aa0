from __future__ import annotations

import threading

import pytest

from fake_llm import fake_llm
from fake_model import encode
from fake_target import Faults
from monolane import SamplingParams, TargetError, UsageError


def test_a_conversation_computes_only_what_is_new() -> None:
    llm, target = fake_llm("Hello.<eos>")
    messages = [{"role": "user", "content": "Hi"}]
    answer = llm.chat(messages)
    again = llm.chat([*messages, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Bye"}])
    assert again.timings.cached_tokens == target.requests[1].cached == len("[user]Hi[assistant]Hello.")


def test_the_same_prompt_again_computes_its_last_token() -> None:
    llm, target = fake_llm("a<eos>")
    llm.generate("hello")
    llm.generate("hello")
    llm.generate("help")
    assert [request.cached for request in target.requests] == [0, 4, 3]


def test_the_last_token_of_an_answer_is_not_in_the_cache() -> None:
    llm, target = fake_llm("abc")
    llm.generate("x", SamplingParams(max_tokens=3))
    llm.generate("xabcd")
    assert target.requests[1].cached == len("xab")


def test_after_a_stop_string_the_cache_is_known() -> None:
    llm, target = fake_llm("abcdef")
    target.at_once = 4  # d has been handed over too, so c has been fed
    llm.generate("x", SamplingParams(stop="b"))
    llm.generate("xabcdefg")
    assert target.requests[1].cached >= len("xabc")  # the fake target checks that it is no lie


def test_leaving_the_loop_stops_the_run() -> None:
    llm, target = fake_llm("abc")
    stream = llm.stream("x")
    for delta in stream:
        assert delta.text == "a"
        break
    assert target.running is not None
    assert target.running.finish is not None
    assert (stream.result.text, stream.result.finish_reason) == ("a", "abort")
    assert llm.generate("x", SamplingParams(max_tokens=2)).text == "ab"


def test_abort_from_another_thread() -> None:
    llm, target = fake_llm("a")
    target.slow_down(0.01)
    stream = llm.stream("x")
    threading.Thread(target=lambda: (target.first_token.wait(), stream.abort())).start()
    text = "".join(delta.text for delta in stream)
    assert stream.result.finish_reason == "abort"
    assert stream.result.text == text
    assert 1 <= len(text) < 100


def test_aborted_before_it_began() -> None:
    llm, target = fake_llm("a")
    stream = llm.stream("x")
    stream.abort()
    assert list(stream) == []
    assert (stream.result.text, stream.result.finish_reason) == ("", "abort")
    assert not target.requests


def test_abort_in_the_prompt_leaves_a_cache_that_is_known() -> None:
    llm, target = fake_llm("a<eos>")
    llm.generate("hello")
    stream = llm.stream("help!")
    original = target.run

    def run_aborted(request):  # type: ignore[no-untyped-def]
        run = original(request)
        run.abort()
        return run

    target.run = run_aborted  # type: ignore[method-assign]
    assert list(stream) == []
    target.run = original  # type: ignore[method-assign]
    llm.generate("hello")
    assert target.requests[-1].cached == len("hel")


def test_after_a_failure_the_cache_is_forgotten_and_the_next_request_works() -> None:
    llm, target = fake_llm("abc<eos>")
    llm.generate("hello")
    target.faults = Faults("error@2")
    with pytest.raises(TargetError, match="stuck"):
        llm.generate("hello")
    target.faults = Faults()
    assert llm.generate("hello").text == "abc"
    assert target.requests[-1].cached == 0


def test_requests_of_several_threads_wait_for_each_other() -> None:
    llm, target = fake_llm("abcd<eos>")
    target.slow_down(0.002)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(llm.generate("x").text)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert texts == ["abcd"] * 5


def test_a_second_request_inside_a_loop_is_refused_and_does_not_hang() -> None:
    llm, _ = fake_llm("abc<eos>")
    for _ in llm.stream("x"):
        with pytest.raises(UsageError, match="still being read"):
            llm.generate("y")
    assert llm.generate("x").text == "abc"


def test_close_ends_what_is_running() -> None:
    llm, target = fake_llm("abc")
    half_read = iter(llm.stream("x"))
    next(half_read)
    llm.close()
    llm.close()
    assert target.closed
    assert target.running is not None
    assert target.running.finish is not None
    with pytest.raises(UsageError, match="closed"):
        llm.generate(encode("x"))
    half_read.close()  # type: ignore[attr-defined]


def test_close_waits_for_another_threads_run_to_end() -> None:
    llm, target = fake_llm("a", context=100_000)
    target.slow_down(0.01)
    results = []
    thread = threading.Thread(target=lambda: results.append(llm.generate("x")))
    thread.start()
    assert target.first_token.wait(10)
    llm.close()
    thread.join(10)
    assert target.closed
    assert results[0].finish_reason == "abort"
