from __future__ import annotations

import json
import re

import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import engine, run
from fake_model import fake_model
from monolane import SamplingParams, UsageError
from monolane.engine.grammar import grammar_maker

MODEL = fake_model()
VOCAB = MODEL.config.vocab + 7  # models pad their vocabulary: what stands for nothing is never allowed
make = grammar_maker(MODEL.tokenizer, MODEL.stop_tokens, VOCAB)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def written(grammar: str, seed: int) -> str:
    """An answer of tokens drawn at random from those allowed."""
    constraint, random = make(grammar), np.random.default_rng(seed)
    tokens: list[int] = []
    while (allowed := constraint.allowed()).any():
        assert len(allowed) == VOCAB
        assert not allowed[MODEL.config.vocab :].any()
        token = int(random.choice(np.flatnonzero(allowed)))
        if token in MODEL.stop_tokens:
            break
        constraint.accept(token)
        tokens.append(token)
        assert len(tokens) < 500
    return MODEL.tokenizer.decode(tokens)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_whatever_is_drawn_follows_the_form(seed: int) -> None:
    value = json.loads(written(llguidance.LLMatcher.grammar_from_json_schema(SCHEMA), seed))
    assert set(value) == {"name", "age"}
    assert isinstance(value["name"], str)
    assert isinstance(value["age"], int)
    assert re.fullmatch(
        r"[a-c]{2,4}-[0-9]", written(llguidance.LLMatcher.grammar_from_regex(r"[a-c]{2,4}-[0-9]"), seed)
    )


@pytest.mark.parametrize("grammar", ["{", "", "start: nothing", '{"grammars": [{"json_schema": {"type": 7}}]}'])
def test_what_is_no_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(UsageError, match="cannot be followed"):
        make(grammar)


def test_a_bad_grammar_ends_its_request_and_not_the_engine() -> None:
    """The fake target does not mind what is forbidden: its answer breaks any form, too."""
    digits = llguidance.LLMatcher.grammar_from_regex(r"\d+")

    async def test() -> None:
        async with engine() as llm:
            for grammar in ("{", digits):
                answer = await llm.complete("Hi", SamplingParams(max_tokens=5), grammar=grammar)
                with pytest.raises(UsageError, match="cannot be followed"):
                    await answer.whole()
            anything = llguidance.LLMatcher.grammar_from_regex(r"(.|\n)*")
            answer = await llm.complete("Hi", SamplingParams(max_tokens=5), grammar=anything)
            assert (await answer.whole()).text == "TTTTT"  # its every run begins anew
            assert llm.state.restarts == 0

    run(test)
