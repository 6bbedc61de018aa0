"""The tokenizer of trained models, and text as tokens: byte-level BPE, learnt from the training text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from monolane.cache import atomic_write, sha256_of
from monolane.errors import UsageError
from monolane.train.text import END_OF_FILE, SPLITS

END_OF_TEXT = "<|endoftext|>"
Tokens = NDArray[np.uint16]

_LEAST, _MOST = 257, 1 << 16  # every byte and END_OF_TEXT; what uint16 can number
_LEARNT_FROM = 32_000_000  # bytes: more text changes few merges
_BYTES_AT_A_TIME = 16 << 20  # that are tokenised together, on all processors


def prepare(folder: Path, vocab: int) -> dict[str, Any]:
    """Learn a tokenizer from the text that ``collect`` wrote, and tokenise all of it; returns ``tokens.json``."""
    if not _LEAST <= vocab <= _MOST:
        raise UsageError(f"A vocabulary cannot have {vocab} tokens.", f"Choose from {_LEAST} to {_MOST}.")
    texts = {split: _texts(folder / f"{split}.txt") for split in SPLITS}
    learnt = learn(texts["train"], vocab)
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(learnt.to_str(pretty=True).encode())
    summary: dict[str, Any] = {"vocab": learnt.get_vocab_size()}
    for split in SPLITS:
        tokens = tokenised(learnt, texts[split])
        with atomic_write(folder / f"{split}.npy") as file:
            np.save(file, tokens, allow_pickle=False)
        summary[split] = {"tokens": tokens.size, "bytes": sum(map(len, texts[split]))}
        summary[split]["sha256"] = sha256_of(folder / f"{split}.npy")
    with atomic_write(folder / "tokens.json") as file:
        file.write(json.dumps(summary, indent=1).encode())
    return summary


def learn(texts: Sequence[bytes], vocab: int) -> tokenizers.Tokenizer:
    """From every file, or from every n-th where that is enough."""
    every = max(1, sum(map(len, texts)) // _LEARNT_FROM)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.decode() for text in texts[::every]), trainer)
    return tokenizer


def tokenised(tokenizer: tokenizers.Tokenizer, texts: Sequence[bytes]) -> Tokens:
    """All texts, each followed by END_OF_TEXT."""
    tokenizer.encode_special_tokens = True  # a file that spells END_OF_TEXT does not end there
    end = tokenizer.token_to_id(END_OF_TEXT)
    return np.concatenate(
        [
            np.array([*encoded.ids, end], np.uint16)
            for group in _groups(texts)
            for encoded in tokenizer.encode_batch_fast([text.decode() for text in group])
        ]
    )


def _texts(path: Path) -> list[bytes]:
    if not path.is_file():
        raise UsageError(f"There is no {path}.", "Collect text first: python -m monolane.train data.")
    if texts := path.read_bytes().split(END_OF_FILE)[:-1]:
        return texts
    raise UsageError(f"{path} is empty.", "Collect the text of more packages: python -m monolane.train data.")


def _groups(texts: Sequence[bytes]) -> Iterator[list[bytes]]:
    group, size = [], 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= _BYTES_AT_A_TIME:
            yield group
            group, size = [], 0
    if group:
        yield group
