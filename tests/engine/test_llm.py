from __future__ import annotations

import subprocess
import sys

import pytest

import monolane
from fake_llm import fake_llm
from fake_model import encode
from monolane import SamplingParams, UsageError


def test_an_answer_ends_with_the_end_token_which_is_no_part_of_it() -> None:
    llm, _ = fake_llm("blue.<eos>")
    answer = llm.generate("The sky is ")
    assert answer.text == "blue."
    assert answer.token_ids == tuple(encode("blue."))
    assert answer.finish_reason == "stop"
    assert answer.prompt_tokens == len("The sky is ")
    assert answer.logprobs is None


def test_timings_come_from_the_clock_of_the_target() -> None:
    llm, target = fake_llm("blue.<eos>")
    timings = llm.generate("sky").timings
    assert timings.first_token_s == pytest.approx(len("sky") * target.prompt_s)
    assert timings.decode_us_per_token == pytest.approx(target.token_s * 1e6)
    assert (timings.prompt_tokens, timings.generated_tokens) == (3, 5)
    assert timings.bytes_per_token == target.bytes_per_token


def test_max_tokens() -> None:
    llm, _ = fake_llm("abcdef<eos>")
    answer = llm.generate("x", SamplingParams(max_tokens=3))
    assert (answer.text, answer.finish_reason) == ("abc", "length")


@pytest.mark.parametrize("max_tokens", [None, 10**9])
def test_an_answer_ends_when_the_context_is_full(max_tokens: int | None) -> None:
    llm, target = fake_llm("a", context=32)
    answer = llm.generate("x" * 20, SamplingParams(max_tokens=max_tokens))
    assert (answer.text, answer.finish_reason) == ("a" * 12, "length")
    assert target.requests[0].max_tokens == 12


def test_stop_tokens() -> None:
    llm, target = fake_llm("ab<eos>cd")
    assert llm.generate("x", SamplingParams(stop_token_ids=encode("b"))).text == "a"
    going_on = llm.generate("x", SamplingParams(ignore_eos=True, stop_token_ids=encode("d")))
    assert going_on.text == "abc"  # the end token itself has no text
    assert going_on.token_ids == tuple(encode("ab<eos>c"))
    assert target.requests[1].stop_tokens == frozenset(encode("d"))


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_stop_strings_end_the_answer_wherever_the_batches_end(batch: int) -> None:
    llm, target = fake_llm("one\n\ntwo\n\n")
    target.at_once = batch
    stream = llm.stream("x", SamplingParams(stop=["\n\n", "never"]))
    shown = "".join(delta.text for delta in stream)
    assert shown == stream.result.text == "one"
    assert stream.result.finish_reason == "stop"
    assert stream.result.token_ids == tuple(encode("one\n\n"))  # up to the token that completed it
    assert stream.result.timings.generated_tokens == 5


def test_what_looked_like_a_stop_string_is_given_out_at_the_end() -> None:
    llm, _ = fake_llm("a EN<eos>")
    assert llm.generate("x", SamplingParams(stop="END")).text == "a EN"


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_characters_come_whole(batch: int) -> None:
    llm, target = fake_llm("né 😀!<eos>")
    target.at_once = batch
    texts = [delta.text for delta in llm.stream("x")]
    assert "".join(texts) == "né 😀!"
    assert not any("\ufffd" in text for text in texts)


def test_a_stream_hands_over_as_many_tokens_as_are_ready() -> None:
    llm, target = fake_llm("abcdefg<eos>")
    target.at_once = 3
    assert [delta.text for delta in llm.stream("x")] == ["abc", "def", "g"]


def test_the_pieces_of_a_stream_make_up_its_result() -> None:
    llm, target = fake_llm("héllo wörld<eos>")
    target.at_once = 2
    stream = llm.stream("x", SamplingParams(stop="zzz", logprobs=2))
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == stream.result.text == "héllo wörld"
    assert tuple(i for delta in deltas for i in delta.token_ids) == stream.result.token_ids
    assert tuple(entry for delta in deltas for entry in delta.logprobs or ()) == stream.result.logprobs


def test_logprobs() -> None:
    llm, _ = fake_llm("ab<eos>")
    logprobs = llm.generate("x", SamplingParams(logprobs=2)).logprobs
    assert logprobs is not None
    assert [entry.token_id for entry in logprobs] == encode("ab")
    assert logprobs[0].logprob == -0.5
    assert logprobs[0].top == ((0, -1.0), (1, -2.0))


def test_a_seed_is_drawn_and_reported() -> None:
    llm, target = fake_llm("a<eos>")
    first, second = llm.generate("x"), llm.generate("x")
    assert first.seed != second.seed
    assert [request.sampling.seed for request in target.requests] == [first.seed, second.seed]
    assert llm.generate("x", SamplingParams(seed=7)).seed == 7


def test_without_parameters_a_request_is_sampled_as_the_makers_suggest() -> None:
    llm, target = fake_llm("a<eos>")
    llm.generate("x")
    llm.chat([{"role": "user", "content": "Hi"}])
    llm.generate("x", SamplingParams())
    asked = [(request.sampling.temperature, request.sampling.repetition_penalty) for request in target.requests]
    assert asked == [(0.7, 1.05), (0.7, 1.05), (0.0, 1.0)]


def test_a_prompt_of_token_ids() -> None:
    llm, target = fake_llm("a<eos>")
    assert llm.generate([1, 2, 3]).prompt_tokens == 3
    assert list(target.requests[0].tokens) == [1, 2, 3]


def test_chat_renders_the_template() -> None:
    llm, target = fake_llm("Hello.<eos>", add_bos=True)
    assert llm.chat([{"role": "user", "content": "Hi"}]).text == "Hello."
    assert list(target.requests[0].tokens) == encode("[user]Hi[assistant]")  # no second <bos> before it
    stream = llm.chat([{"role": "user", "content": "Hi"}], stream=True)
    assert "".join(delta.text for delta in stream) == "Hello."


def test_an_empty_prompt_starts_from_bos_or_is_refused() -> None:
    llm, target = fake_llm("a<eos>", add_bos=True)
    assert llm.generate("").text == "a"
    assert list(target.requests[0].tokens) == encode("<bos>")
    llm, _ = fake_llm("a<eos>")
    with pytest.raises(UsageError, match="empty"):
        llm.generate("")
    with pytest.raises(UsageError, match="empty"):
        llm.generate([])


@pytest.mark.parametrize("length", [32, 33, 500])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(length: int) -> None:
    llm, target = fake_llm("a<eos>", context=32, longest=64)
    with pytest.raises(UsageError, match=rf"{length} tokens.* 32") as caught:
        llm.stream("x" * length)
    assert "--context" in caught.value.hint
    assert "64" in caught.value.hint
    assert not target.requests
    llm.generate("x" * 31)


def test_no_larger_context_is_offered_where_there_is_none() -> None:
    llm, _ = fake_llm("a<eos>", context=32, longest=32)
    with pytest.raises(UsageError) as caught:
        llm.generate("x" * 32)
    assert "--context" not in caught.value.hint


@pytest.mark.parametrize("ids", [[-1], [10**6], ["a"], [True], [2**70]])
def test_prompt_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    llm, target = fake_llm("a<eos>")
    with pytest.raises(UsageError, match="not a token"):
        llm.generate(ids)
    with pytest.raises(UsageError, match="logit_bias"):
        llm.generate("x", SamplingParams(logit_bias={10**6: 1.0}))
    assert not target.requests


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"content": "Hi"}], [{"role": "user", "content": None}]])
def test_bad_messages_are_refused(messages: list[dict[str, str]]) -> None:
    llm, _ = fake_llm("a<eos>")
    with pytest.raises(UsageError, match="message"):
        llm.chat(messages)


def test_chat_without_a_template_is_refused() -> None:
    llm, _ = fake_llm("a<eos>", with_template=False)
    with pytest.raises(UsageError, match="no chat template"):
        llm.chat([{"role": "user", "content": "Hi"}])


def test_a_stream_is_read_once_and_has_its_result_at_the_end() -> None:
    llm, _ = fake_llm("a<eos>")
    stream = llm.stream("x")
    with pytest.raises(UsageError, match="not come to its end"):
        _ = stream.result
    list(stream)
    with pytest.raises(UsageError, match="read already"):
        list(stream)
    assert stream.result.text == "a"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, monolane; print(sorted({'numpy', 'tokenizers', 'fastapi', 'typer'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
    assert all(getattr(monolane, name) for name in monolane.__all__)
    with pytest.raises(AttributeError):
        _ = monolane.nothing
