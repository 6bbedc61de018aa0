"""Grammars (a JSON schema, a regular expression) as constraints, by llguidance: which tokens may come next."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from monolane.engine.constrained import Constraint
from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.model.tokenizer import Tokenizer


def has_llguidance() -> bool:
    return importlib.util.find_spec("llguidance") is not None


def require_llguidance() -> None:
    """UsageError where the package is missing."""
    if not has_llguidance():
        raise UsageError(
            "Answers of a given form need the llguidance package.", "Install it: pip install 'monolane[grammar]'"
        )


def grammar_maker(tokenizer: Tokenizer, stop_tokens: frozenset[int], vocab: int) -> Callable[[str], Constraint]:
    """How a grammar, as one of llguidance's strings, becomes a constraint.

    The vocabulary is prepared here and now, while the model is being loaded: it takes a good part of a second, in which
    no other thread of this process runs.
    """
    if not has_llguidance():
        return _refuse("The llguidance package is missing.")
    if not stop_tokens:
        return _refuse("This model has no end token, so no form can be complete.")
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(stop_tokens)
    prepared = LLTokenizer(TokenizerWrapper(_Vocabulary.of(tokenizer, ends[0], vocab)), eos_token=ends)
    return lambda grammar: GrammarConstraint(prepared, grammar, vocab)


def _refuse(reason: str) -> Callable[[str], Constraint]:
    def refuse(_: str) -> Constraint:
        raise UsageError(reason, "Ask without a form.")

    return refuse


class GrammarConstraint:
    """A grammar, and how much of an answer it has seen."""

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
            raise UsageError(f"The form asked for cannot be followed: {self._matcher.get_error()}", "Simplify it.")


@dataclass(frozen=True)
class _Vocabulary:
    """A tokenizer as llguidance wants to see it."""

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
