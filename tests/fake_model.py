"""A model without weights, for tests of everything above the target."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from monolane.model.chat import ChatTemplate
from monolane.model.config import ModelConfig, Rope
from monolane.model.load import Model, Tokenization
from monolane.model.tokenizer import Tokenizer

# Renders a conversation as [user]Hi[assistant].
TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"


@cache
def byte_tokenizer(add_bos: bool = False) -> Tokenizer:
    """One token per byte: characters beyond ASCII span several tokens. Then <bos> and <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    return Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<eos>"}, add_bos=add_bos, add_eos=False)


@cache
def fake_model(add_bos: bool = False, with_template: bool = True, longest: int = 1 << 20) -> Model:
    tokenizer = byte_tokenizer(add_bos)
    config = ModelConfig(
        family="fake", hidden=8, layers=1, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=tokenizer.vocab_size,
        context=longest, norm_eps=1e-5, rope=Rope(1e4), windows=(None,),
    )  # fmt: skip
    end = tokenizer.token_id("<eos>")
    assert end is not None
    tokenization = Tokenization(tokenizer, ChatTemplate(TEMPLATE, {}) if with_template else None, frozenset({end}))
    return Model(
        name="fake-model", path=Path("fake"), config=config, weights=None, tokenization=lambda: tokenization,  # type: ignore[arg-type]
    )  # fmt: skip


def encode(text: str) -> list[int]:
    """Token ids of a text; "<eos>" is the end token."""
    return byte_tokenizer().encode(text, special=False)


def with_chat(model: Model, chat: ChatTemplate) -> Model:
    tokenization = replace(model.tokenization(), chat=chat)
    return replace(model, tokenization=lambda: tokenization)
