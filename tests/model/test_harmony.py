"""The channels of gpt-oss as one text, from tokens that arrive one by one or together."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from monolane.model.tokenizer import Tokenizer
from monolane.serve.tool_parser import Call, parser_for

CONTROLS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
PROMPT = "<|start|>user<|message|>Weather?<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>They want weather: é.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is 20 °C."
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(control, special=True) for control in CONTROLS])
    return Tokenizer(backend, {})


def shown(tokenizer: Tokenizer, answer: str, prompt: str = PROMPT) -> str:
    """What is seen of an answer; the same in one piece and token by token."""
    texts = []
    ids = tokenizer.encode(answer)
    for pieces in ([ids], [[token] for token in ids]):
        stream = tokenizer.stream(tokenizer.encode(prompt))
        texts.append("".join(stream.push(piece) for piece in pieces) + stream.flush())
    assert texts[0] == texts[1]
    return texts[0]


def test_thoughts_come_before_the_answer(tokenizer: Tokenizer) -> None:
    assert shown(tokenizer, THOUGHT + FINAL) == "<think>\nThey want weather: é.\n</think>\n\nIt is 20 °C."
    assert shown(tokenizer, FINAL + "<|return|>") == "It is 20 °C."


def test_a_call_is_one_that_the_parser_of_calls_finds(tokenizer: Tokenizer) -> None:
    """Also without its last token, which ends the answer, and where the recipient comes before the channel."""
    before = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
    named = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}'
    for call in (CALL, CALL + "<|call|>", named):
        parser = parser_for(["weather"], parallel=True)
        parts = [*parser.push(shown(tokenizer, before + call)), *parser.flush()]
        assert parts[0] == "Let me look."
        [found] = parts[1:]
        assert isinstance(found, Call)
        assert (found.name, json.loads(found.arguments)) == ("weather", {"city": "Paris"})


def test_a_call_that_was_cut_off_is_left_out(tokenizer: Tokenizer) -> None:
    parser = parser_for(["weather"], parallel=True)
    assert [*parser.push(shown(tokenizer, CALL[:-5])), *parser.flush(cut=True)] == []


def test_a_message_that_the_prompt_has_begun_goes_on(tokenizer: Tokenizer) -> None:
    assert shown(tokenizer, " today.", PROMPT + FINAL) == " today."
    rest = shown(tokenizer, " So it is.<|end|><|start|>assistant" + FINAL, PROMPT + THOUGHT.partition("<|end|>")[0])
    assert rest == " So it is.\n</think>\n\nIt is 20 °C."


def test_an_answer_without_a_header_is_a_message(tokenizer: Tokenizer) -> None:
    """As it is where a grammar constrains it."""
    assert shown(tokenizer, '{"city": "Paris"}') == '{"city": "Paris"}'
    assert shown(tokenizer, " today<|return|>") == " today"
    assert shown(tokenizer, " t") == " t"


def test_text_without_channels_is_text(tokenizer: Tokenizer) -> None:
    assert shown(tokenizer, "once upon<|end|> a time", prompt="Tell: ") == "once upon a time"


def test_half_a_character_before_a_control_token_is_shown_as_one_that_is_none(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream(tokenizer.encode(PROMPT + "<|channel|>final<|message|>"))
    half = tokenizer.encode("é")[:1]
    assert stream.push([*half, *tokenizer.encode("<|return|>")]) + stream.flush() == "\ufffd"
