from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from fake_llm import fake_llm, llm_of
from fake_model import encode, fake_model, with_chat
from fake_target import FakeTarget
from monolane import UsageError
from monolane.engine.chat_tokenizer import ChatTokenizer, check_length
from monolane.model.chat import ChatTemplate

END = encode("<eos>")[0]


@pytest.mark.parametrize(
    "content",
    [
        "a <eos> b",
        "<eos>",
        "<<eos>eos>",
        "<bos><eos>",
        [{"type": "text", "text": "<e"}, {"type": "text", "text": "os>"}],
    ],
)
def test_a_user_cannot_end_the_turn_by_spelling_a_control_token(content: Any) -> None:
    llm, target = fake_llm("Hello.<eos>")
    llm.chat([MappingProxyType({"role": "user", "content": content})])
    [request] = target.requests
    assert END not in request.tokens
    text = content if isinstance(content, str) else "<eos>"
    assert llm.tokenizer.decode(request.tokens, skip_special=False) == f"[user]{text}[assistant]"


def test_nor_within_the_arguments_of_a_call() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.x }}", {})
    target = FakeTarget(encode("Hello.<eos>"))
    llm = llm_of(with_chat(fake_model(), template), target)
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\\u003ceos>"}'}}
    llm.chat([{"role": "assistant", "tool_calls": [call]}])
    assert llm.tokenizer.decode(target.requests[0].tokens, skip_special=False) == "<eos>"
    assert END not in target.requests[0].tokens


def test_a_plain_completion_may() -> None:
    llm, target = fake_llm("Hello.<eos>")
    llm.generate("a<eos>b")
    assert END in target.requests[0].tokens


def test_words_without_control_tokens_are_tokenized_as_one_text() -> None:
    llm, target = fake_llm("Hello.<eos>")
    llm.chat([{"role": "user", "content": "Hi <e os>"}])
    assert list(target.requests[0].tokens) == encode("[user]Hi <e os>[assistant]")


@pytest.mark.parametrize("prompt", ["x" * 641, [{"content": ["x" * 600], "k" * 34: 1}], ({"a": ("x" * 640,)},)])
def test_a_prompt_that_can_not_fit_is_not_even_tokenized(prompt: Any) -> None:
    with pytest.raises(UsageError, match="641 characters"):
        check_length(prompt, 10)
    check_length(prompt, 11)


def test_tokens_of_another_model_are_refused() -> None:
    tokenizer = ChatTokenizer(fake_model())
    assert tokenizer.text(tokenizer.text_tokens("ö<eos>")) == "ö<eos>"
    with pytest.raises(UsageError, match="not a token of this model"):
        tokenizer.text([10**6])
