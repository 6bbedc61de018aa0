"""The Python API with a real model behind it, as a reader of the README would use it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolane import LLM, Completion, SamplingParams, UsageError

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARTY = "Party: 🎉🎉🎉🎉🎉🎉"  # three tokens for each character; the model goes on in the same way


@pytest.fixture(scope="module")
def llm(default_model_path: Path) -> Iterator[LLM]:
    # With one worker: two would wait for each other where other tests have a core of the machine.
    with LLM(default_model_path, workers=1, context=1024) as llm:
        yield llm


def test_generate_continues_a_text(llm: LLM) -> None:
    result = llm.generate("The capital of France is", SamplingParams(max_tokens=12))
    assert result.text.startswith(" Paris")
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 12
    assert llm.tokenizer.decode(result.token_ids) == result.text


def test_the_pieces_of_a_stream_make_up_the_same_answer(llm: LLM) -> None:
    prompt, params = "Seven facts about the moon:", SamplingParams(max_tokens=20)
    stream = llm.stream(prompt, params)
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == stream.result.token_ids
    assert stream.result.text == llm.generate(prompt, params).text


def test_chat_answers_the_question_and_ends_by_itself(llm: LLM) -> None:
    result = llm.chat(FRANCE, SamplingParams(max_tokens=60))
    assert "Paris" in result.text
    assert "<|" not in result.text
    assert result.finish_reason == "stop"
    assert not llm.model.stop_tokens & set(result.token_ids)


def test_ignore_eos_goes_on(llm: LLM) -> None:
    ended = llm.chat(FRANCE, SamplingParams(max_tokens=60))
    going_on = llm.chat(FRANCE, SamplingParams(max_tokens=20, ignore_eos=True))
    assert going_on.finish_reason == "length"
    assert len(going_on.token_ids) == 20
    assert going_on.token_ids[: len(ended.token_ids)] == ended.token_ids
    assert going_on.token_ids[len(ended.token_ids)] in llm.model.stop_tokens


def test_a_stop_string_ends_the_answer_before_it(llm: LLM) -> None:
    prompt = "One, two, three, four, five, six,"
    free = llm.generate(prompt, SamplingParams(max_tokens=24))
    for stop in (" eight", "ven, eig"):  # a whole token, and one that begins and ends within tokens
        assert stop in free.text
        result = llm.generate(prompt, SamplingParams(max_tokens=24, stop=stop))
        assert result.finish_reason == "stop"
        assert result.text == free.text[: free.text.index(stop)]


def test_a_stop_token_ends_the_answer_before_it(llm: LLM) -> None:
    free = llm.generate("One, two, three,", SamplingParams(max_tokens=12))
    stop = free.token_ids[5]
    result = llm.generate("One, two, three,", SamplingParams(max_tokens=12, stop_token_ids=[stop]))
    assert result.finish_reason == "stop"
    assert result.token_ids == free.token_ids[: free.token_ids.index(stop)]


def test_logprobs_are_those_of_a_distribution(llm: LLM) -> None:
    result = llm.generate("The capital of France is", SamplingParams(max_tokens=8, logprobs=20))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
    for entry in result.logprobs:
        values = [logprob for _, logprob in entry.top]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        assert entry.top[0] == (entry.token_id, entry.logprob)  # greedy: the likeliest was chosen
        assert 0.1 < sum(math.exp(value) for value in values) <= 1.0001


def test_logit_bias_forbids_a_token(llm: LLM) -> None:
    (paris,) = llm.tokenizer.encode(" Paris")
    result = llm.generate("The capital of France is", SamplingParams(max_tokens=8, logit_bias={paris: -100}))
    assert paris not in result.token_ids


def test_a_repetition_penalty_ends_a_loop(llm: LLM) -> None:
    free = llm.generate(PARTY, SamplingParams(max_tokens=15))
    penalised = llm.generate(PARTY, SamplingParams(max_tokens=15, repetition_penalty=1.5))
    assert len(set(free.token_ids)) == 3
    assert len(set(penalised.token_ids)) > 6


def test_timings_are_filled_in(llm: LLM, default_model_path: Path) -> None:
    timings = llm.generate("Rain is", SamplingParams(max_tokens=8, ignore_eos=True)).timings
    assert timings.prompt_tokens == len(llm.tokenizer.encode("Rain is"))
    assert timings.generated_tokens == 8
    assert timings.first_token_s is not None
    assert timings.first_token_s > 0
    assert timings.decode_us_per_token is not None
    assert timings.tokens_per_second == pytest.approx(1e6 / timings.decode_us_per_token)
    # Every weight but the norms is read once, as the file stores it: 134.5 million, most of them in 5 bits (Q4_1).
    assert 0.9 < timings.bytes_per_token / default_model_path.stat().st_size < 1.1


def test_the_second_turn_of_a_conversation_reuses_the_first(llm: LLM, default_model_path: Path) -> None:
    params = SamplingParams(max_tokens=60)
    first = llm.chat(FRANCE, params)
    conversation = [*FRANCE, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
    second = llm.chat(conversation, params)
    assert "Rome" in second.text
    # All of the first turn is known, but for its end token, which was chosen and never fed.
    assert second.timings.cached_tokens >= first.prompt_tokens + len(first.token_ids)
    with LLM(default_model_path, context=1024) as fresh:
        alone = fresh.chat(conversation, params)
    assert alone.timings.cached_tokens == 0
    assert alone.token_ids == second.token_ids


def test_an_empty_prompt_is_refused(llm: LLM) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        llm.generate("")


def test_a_prompt_longer_than_the_context_is_refused_and_one_that_just_fits_is_not(default_model_path: Path) -> None:
    with LLM(default_model_path, context=32) as small:
        tokens = small.tokenizer.encode("word " * 40)
        with pytest.raises(UsageError, match=r"40 tokens|41 tokens"):
            small.generate("word " * 40)
        fits = small.generate(tokens[:31])
        assert (len(fits.token_ids), fits.finish_reason) == (1, "length")
        with pytest.raises(UsageError, match="32 tokens"):
            small.generate(tokens[:32])


def test_characters_of_several_tokens_come_whole(llm: LLM) -> None:
    stream = llm.stream(PARTY, SamplingParams(max_tokens=9))
    pieces = [piece.text for piece in stream]
    assert set(pieces) <= {"", "🎉", "🎉🎉", "🎉🎉🎉"}
    assert "".join(pieces) == stream.result.text == "🎉🎉🎉"


def test_many_answers_leave_the_model_as_it_was(llm: LLM) -> None:
    def ask() -> Completion:
        return llm.chat(FRANCE, SamplingParams(max_tokens=16))

    before = ask()
    for piece in llm.stream("A long story about a dog:", SamplingParams(max_tokens=200)):
        if piece.token_ids:
            break  # left early: the run is stopped
    with pytest.raises(UsageError):
        llm.generate([10**9])
    after = ask()
    assert after.token_ids == before.token_ids
