"""Grammars as constraints, by llguidance: JSON schemas, regular expressions, Lark grammars."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from monolane.engine.constraint import Constraint
from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.model.tokenizer import Tokenizer


def grammar_maker(tokenizer: Tokenizer, stop_tokens: frozenset[int], vocab: int) -> Callable[[str], Constraint]:
    """A function that makes a constraint of a grammar in llguidance's notation.

    It is called while the model is being loaded, because llguidance takes a good part of a second to prepare the
    vocabulary, and no other thread of the process runs meanwhile.
    """
    if not stop_tokens:
        return _refuse("This model has no end token, so structured output could never end.")
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(stop_tokens)
    prepared = LLTokenizer(TokenizerWrapper(_Vocabulary.of(tokenizer, ends[0], vocab)), eos_token=ends)
    return lambda grammar: GrammarConstraint(prepared, grammar, vocab)


def _refuse(reason: str) -> Callable[[str], Constraint]:
    def refuse(_: str) -> Constraint:
        raise UsageError(reason, "Ask without structured output.")

    return refuse


class GrammarConstraint:
    """A grammar, and its state after the tokens of an answer so far."""

    def __init__(self, tokenizer: Any, grammar: str, vocab: int) -> None:
        from llguidance import LLMatcher

        self._matcher: Any = LLMatcher(tokenizer, grammar, log_level=0)
        self._vocab = vocab
        self._check()

    def allowed(self) -> NDArray[np.bool_]:
        if self._matcher.is_stopped():
            self._check()
            return np.zeros(self._vocab, bool)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(mask, bitorder="little")[: self._vocab].astype(bool)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            # The matcher's own words are about its insides, and of no use to whoever sent a schema.
            logging.getLogger(__name__).info("llguidance: %s", self._matcher.get_error())
            raise UsageError("The grammar cannot be followed.", "Simplify it.")


@dataclass(frozen=True)
class _Vocabulary:
    """A tokenizer behind the interface that llguidance expects."""

    encode: Callable[[str], list[int]]
    eos_token_id: int
    tokens: list[bytes]
    special_token_ids: list[int]
    bos_token_id: int | None = field(default=None)

    @classmethod
    def of(cls, tokenizer: Tokenizer, end: int, vocab: int) -> _Vocabulary:
        special = [token for token in range(vocab) if tokenizer.is_special(token)]
        tokens = [tokenizer.token_bytes(token) for token in range(vocab)]
        return cls(lambda text: tokenizer.encode(text, special=False), end, tokens, special)

    def __call__(self, text: str | bytes) -> list[int]:
        return self.encode(text.decode() if isinstance(text, bytes) else text)
