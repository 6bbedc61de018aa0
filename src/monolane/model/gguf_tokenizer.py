"""Builds a tokenizer from the ``tokenizer.ggml.*`` metadata of a GGUF file.

The supported families have two kinds: ``gpt2`` is byte-level BPE with a list of merges and the name of a pre-tokenizer,
and ``llama`` is SentencePiece BPE, with scores of tokens instead of merges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from monolane.errors import ModelFileError, UnsupportedModelError

Element = TypeVar("Element", str, int, float)

_KEY = "tokenizer.ggml."
_REFETCH = "The file is damaged or was converted wrongly: fetch it again, or take another conversion of the model."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of token_type; 5 is unused, 6 a single byte

# Characters. The merges of a SentencePiece vocabulary are found by splitting each token at every position.
_LONGEST_SCORED_TOKEN = 1024

_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True)
class _Words:
    """A pre-tokenizer of byte-level BPE: how a text is split into words, within which tokens are merged."""

    # Applied one after the other. Each match of a pattern is a word, and so is the text between two matches.
    patterns: tuple[str, ...]
    nfc: bool = False  # the text is normalised to NFC first
    whole_words: bool = (
        False  # a word that is in the vocabulary becomes that token, whatever the merges (ignore_merges)
    )
    add_bos: bool = False  # the default where the file has no add_bos_token


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION_OR_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _CONTRACTION_OR_WORD + r"|\p{N}{1,3}" + _AFTER_WORDS
_QWEN2 = _CONTRACTION_OR_WORD + r"|\p{N}" + _AFTER_WORDS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_AFTER_NUMBERS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}" + _AFTER_NUMBERS
)
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTED}"
    r"|\p{N}{1,3}" + _AFTER_NUMBERS
)

_WORDS = {
    # For older files that do not name their pre-tokenizer: what other readers use for these.
    "default": _Words((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _Words((_GPT2,)),
    "smollm": _Words((r"\p{N}", _GPT2)),
    "llama-bpe": _Words((_LLAMA3,), whole_words=True, add_bos=True),
    "smaug-bpe": _Words((_LLAMA3,)),
    "qwen2": _Words((_QWEN2,), nfc=True),
    "tekken": _Words((_TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": _Words((_GPT4O,)),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> _Vocabulary:
        tokens = _list(metadata, "tokens", str)
        types = _list(metadata, "token_type", int) if _KEY + "token_type" in metadata else [_NORMAL] * len(tokens)
        if not tokens:
            raise ModelFileError("The GGUF file's vocabulary is empty.", _REFETCH)
        if len(types) != len(tokens):
            raise ModelFileError(f"The GGUF file has {len(tokens)} tokens but {len(types)} token types.", _REFETCH)
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
            raise ModelFileError(f"The GGUF file's vocabulary has the token {twice!r} twice.", _REFETCH)
        return cls(tokens, types, ids)


def build_from_gguf(metadata: Mapping[str, object]) -> tuple[tokenizers.Tokenizer, dict[str, str], bool, bool, int]:
    """The tokenizer, its special tokens by role, whether ``encode`` adds BOS and EOS, and its number of tokens."""
    kind = metadata.get(_KEY + "model")
    if kind is None:
        raise ModelFileError("The GGUF file carries no tokenizer (tokenizer.ggml.model is missing).", _REFETCH)
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"The GGUF file's tokenizer is of the kind {kind!r}.", "Supported are 'gpt2' and 'llama'."
        )
    vocabulary = _Vocabulary.read(metadata)
    try:
        if kind == "gpt2":
            words = _words(metadata)
            backend, add_bos = _byte_level(vocabulary, _merges(metadata), words), words.add_bos
        else:
            prefix = _flag(metadata, "add_space_prefix", default=True)
            backend, add_bos = _sentencepiece(vocabulary, _list(metadata, "scores", float), prefix), True
    except (ModelFileError, UnsupportedModelError):
        raise
    except Exception as error:  # the library raises bare Exception, for example for a merge of tokens it does not know
        raise ModelFileError(f"The GGUF file's tokenizer contradicts itself: {error}", _REFETCH) from error
    roles = _special_tokens(metadata, vocabulary)
    _mark_special(backend, vocabulary, roles)
    add_bos = _flag(metadata, "add_bos_token", default=add_bos)
    return backend, roles, add_bos, _flag(metadata, "add_eos_token", default=False), len(vocabulary.tokens)


def _byte_level(vocabulary: _Vocabulary, merges: list[tuple[str, str]], words: _Words) -> tokenizers.Tokenizer:
    model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=words.whole_words)
    backend = tokenizers.Tokenizer(model)
    if words.nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in words.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: _Vocabulary, scores: list[float], space_prefix: bool) -> tokenizers.Tokenizer:
    if len(scores) != len(vocabulary.tokens):
        raise ModelFileError(
            f"The GGUF file has {len(vocabulary.tokens)} tokens but {len(scores)} token scores.", _REFETCH
        )
    unknown = next((t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _UNKNOWN), None)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_from_scores(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend("▁")] if space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1)] if space_prefix else []
    spell = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*spell, *strip])
    return backend


def _merges_from_scores(vocabulary: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """The merges that reproduce SentencePiece, which always merges the two neighbours whose union has the best score.

    Every split of a token into two tokens is a merge; those of the best score come first. Of the splits of one token,
    that with the longest left part comes first, so that a run of equal characters is merged from the left.
    """
    normal = {t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _NORMAL}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token_id, (token, score) in enumerate(zip(vocabulary.tokens, scores, strict=True)):
        if token not in normal:
            continue
        if len(token) > _LONGEST_SCORED_TOKEN or not math.isfinite(score):
            raise ModelFileError(f"Token {token_id} of the GGUF file is too long or has no finite score.", _REFETCH)
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                ranked.append((-score, token_id, -cut, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _mark_special(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, roles: dict[str, str]) -> None:
    """Register control and user-defined tokens, so that they are recognised in a text before pre-tokenization."""
    ends = {roles.get("bos_token"), roles.get("eos_token")}  # some converters do not mark these as control tokens
    control, user_defined = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (_CONTROL, _UNKNOWN) or token in ends:
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            user_defined.append(AddedToken(token, special=False, normalized=False))
    if any(not token.content for token in control + user_defined):
        raise ModelFileError("The GGUF file has a special token without a name.", _REFETCH)
    backend.add_special_tokens(control)
    backend.add_tokens(user_defined)


def _special_tokens(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, role in _ROLES.items():
        token_id = metadata.get(f"{_KEY}{name}_token_id")
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(vocabulary.tokens):
            raise ModelFileError(
                f"The GGUF file's {name}_token_id is {token_id!r}, outside its vocabulary of "
                f"{len(vocabulary.tokens)} tokens.",
                _REFETCH,
            )
        found[role] = vocabulary.tokens[token_id]
    return found


def _words(metadata: Mapping[str, object]) -> _Words:
    name = metadata.get(_KEY + "pre", "default")
    words = _WORDS.get(_ALIASES.get(name, name)) if isinstance(name, str) else None
    if words is None:
        raise UnsupportedModelError(
            f"The GGUF file's tokenizer cuts words by the rule {name!r} (tokenizer.ggml.pre), which we do not know.",
            f"Supported are {', '.join(sorted([*_WORDS, *_ALIASES]))}. "
            "Running it with another rule would silently worsen the model.",
        )
    return words


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in _list(metadata, "merges", str):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise ModelFileError(f"The GGUF file's merge {merge[:80]!r} is not two tokens.", _REFETCH)
        merges.append((left, right))
    return merges


def _list(metadata: Mapping[str, object], name: str, kind: type[Element]) -> list[Element]:
    values = metadata.get(_KEY + name)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ModelFileError(f"The GGUF file's {_KEY}{name} is missing or not a list of {kind.__name__}.", _REFETCH)
    return values


def _flag(metadata: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = metadata.get(_KEY + name, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"The GGUF file's {_KEY}{name} is {value!r} instead of true or false.", _REFETCH)
    return value
