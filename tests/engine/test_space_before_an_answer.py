"""SentencePiece models: the space before an answer is the model's own, in text, stop strings and offsets.

The judge is transformers: an answer is what its decoding of prompt and answer has more than that of the prompt alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaTokenizer

from fake_llm import llm_of
from fake_model import fake_model
from fake_target import FakeTarget
from monolane import LLM, SamplingParams
from monolane.engine.result import Completion
from monolane.model.chat import ChatTemplate
from monolane.model.load import Tokenization
from monolane.model.tokenizer import Tokenizer
from monolane.serve.completions import CompletionDialect, CompletionRequest
from monolane.serve.token_json import TokenJson

LETTERS = ["▁", *"Thebigdowaslkn.[]INS/é"]
MERGES = ["▁ T", "▁T h", "▁Th e", "▁ b", "▁ d", "▁ w", "a s", "▁w as", "i n", "in g", "▁b i", "▁bi g", "o g", "▁d og"]
BYTES = ["<0xC3>", "<0xA9>", "<0x0A>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
WORDS = [merge.replace(" ", "") for merge in MERGES]
VOCABULARY = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *LETTERS, *WORDS, *BYTES])}
TEMPLATE = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"


class Pair(SimpleNamespace):
    theirs: Any
    ours: Tokenizer

    def difference(self, prompt: list[int], answer: list[int]) -> str:
        before, whole = (self.theirs.decode(ids, skip_special_tokens=True) for ids in (prompt, prompt + answer))
        assert whole.startswith(before)
        return str(whole[len(before) :])


def _from_transformers(folder: Path, theirs: Any) -> Tokenizer:
    """As a Llama 2 or Mistral folder has it."""
    theirs.save_pretrained(folder)
    return Tokenizer.from_file(folder / "tokenizer.json", {"bos_token": "<s>", "add_bos_token": True})


def _from_gguf(_: Path, __: Any) -> Tokenizer:
    """As a GGUF file of the same model has it: scores instead of merges."""
    names = list(VOCABULARY)
    kinds = [2, 3, 3, *[1] * (len(LETTERS) + len(WORDS)), *[6] * len(BYTES)]
    scores = [-1000.0 if name not in WORDS else -float(WORDS.index(name)) for name in names]
    fields = {"model": "llama", "tokens": names, "token_type": kinds, "scores": scores}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in (fields | ends).items()})


@pytest.fixture(params=[_from_transformers, _from_gguf], ids=["tokenizer.json", "gguf"])
def pair(request: Any, tmp_path: Path) -> Pair:
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    theirs = LlamaTokenizer(vocab=VOCABULARY, merges=merges, add_bos_token=True)
    return Pair(theirs=theirs, ours=request.param(tmp_path, theirs))


def opened(tokenizer: Tokenizer, answer: list[int]) -> LLM:
    plain = fake_model()
    tokenization = Tokenization(tokenizer, ChatTemplate(TEMPLATE, {"bos_token": "<s>"}), frozenset({2}))
    model = replace(plain, tokenization=lambda: tokenization, config=replace(plain.config, vocab=tokenizer.vocab_size))
    return llm_of(model, FakeTarget([*answer, 2]))


def asked(pair: Pair, prompt: str, answer: str, **params: Any) -> Completion:
    """An answer whose tokens are those of ``answer``."""
    with opened(pair.ours, pair.ours.encode(answer, special=False)) as llm:
        return llm.generate(prompt, SamplingParams(**params))


@pytest.mark.parametrize("text", ["The big dog was walking.", "The  big\ndog é 😀 was", " The dog"])
def test_wherever_a_text_is_cut_the_answer_is_the_rest_of_it(pair: Pair, text: str) -> None:
    ids = pair.ours.encode(text)
    for cut in range(len(ids)):
        prompt, answer = ids[:cut], ids[cut:]
        if "\ufffd" in pair.theirs.decode(prompt):  # in the middle of a character
            continue
        stream = pair.ours.stream(prompt)
        shown = "".join(stream.push([token]) for token in answer) + stream.flush()
        assert shown == pair.difference(prompt, answer)


def test_the_space_is_part_of_the_answer(pair: Pair) -> None:
    answer = asked(pair, "The big dog", "was walking.")
    assert answer.text == " was walking."
    assert answer.text == pair.difference(pair.ours.encode("The big dog"), list(answer.token_ids))


def test_a_text_that_begins_with_the_answer_has_no_space_before_it(pair: Pair) -> None:
    """An empty prompt is the token with which a text begins, and that says nothing."""
    answer = asked(pair, "", "The big dog", logprobs=0)
    assert answer.text == "The big dog"
    assert [entry.offset for entry in answer.logprobs or ()] == [0, 3, 7]


def test_a_stop_string_sees_the_space(pair: Pair) -> None:
    assert asked(pair, "The big dog", "was big", stop=" was").text == ""
    assert asked(pair, "The big dog", "was big", stop=" big").text == " was"


def test_offsets_are_places_in_the_text(pair: Pair) -> None:
    answer = asked(pair, "The big dog", "was big é dog", logprobs=1)
    assert answer.text == " was big é dog"
    body = CompletionRequest(model="m", prompt="The big dog")
    asked_of: Any = SimpleNamespace(prompt_logprobs=None)
    dialect = CompletionDialect("m", TokenJson(pair.ours.token_bytes), asked_of, body)
    shown = dialect.whole(answer)["choices"][0]["logprobs"]
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        assert answer.text[offset:].startswith(token)


def test_offsets_where_tokens_are_parts_of_characters(pair: Pair) -> None:
    answer = asked(pair, "The", "😀 was", logprobs=0)
    assert answer.text == " 😀 was"
    assert [entry.offset for entry in answer.logprobs or ()] == [0, 1, 1, 1, 1, 2]


def test_chat_and_streams_say_the_same(pair: Pair) -> None:
    with opened(pair.ours, pair.ours.encode("The dog", special=False)) as llm:
        conversation = [{"role": "user", "content": "big"}]
        answer = llm.chat(conversation)
        prompt = pair.ours.encode("<s>[INST] big [/INST]", special=False)
        assert answer.text == pair.difference(prompt, list(answer.token_ids)) == " The dog"
        assert "".join(piece.text for piece in llm.chat(conversation, stream=True)) == " The dog"
