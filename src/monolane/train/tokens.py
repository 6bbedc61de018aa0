"""Tokenised text on the device that trains, and which sequences of it a step sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolane.errors import UsageError
from monolane.model.json_object import read_json_object

_PREPARE = "Prepare it: python -m monolane.train data, then python -m monolane.train tokenizer."


@dataclass(frozen=True)
class TokenData:
    """What ``python -m monolane.train tokenizer`` wrote."""

    folder: Path
    vocab: int
    sha256: str  # of the training tokens
    train: Tensor
    validation: Tensor


def open_tokens(folder: Path, device: torch.device) -> TokenData:
    """All tokens are copied to the device, four bytes each, so that no step waits for the host."""
    if not (folder / "tokens.json").is_file():
        raise UsageError(f"There are no tokens in {folder}.", _PREPARE)
    summary = read_json_object(folder / "tokens.json")
    vocab, train = summary.get("vocab"), summary.get("train")
    if not isinstance(vocab, int) or not isinstance(train, dict):
        raise UsageError(f"{folder / 'tokens.json'} does not say what the tokens are.", _PREPARE)
    return TokenData(
        folder,
        vocab,
        str(train.get("sha256")),
        _read(folder / "train.npy", vocab, device),
        _read(folder / "validation.npy", vocab, device),
    )


def _read(path: Path, vocab: int, device: torch.device) -> Tensor:
    try:
        tokens = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}", _PREPARE) from error
    if tokens.dtype != np.uint16 or tokens.ndim != 1 or not tokens.size or tokens.max() >= vocab:
        raise UsageError(f"{path} does not contain tokens of the vocabulary.", _PREPARE)
    return torch.from_numpy(tokens.astype(np.int32)).to(device)


class Sequences:
    """The text cut into sequences, each as long as a context and one token, in an order that seed and step decide.

    Which sequences a step sees does not depend on the steps before: training that was interrupted goes on as if it had
    not been. Every pass over the text has an order of its own.
    """

    def __init__(self, tokens: Tensor, length: int, seed: int | None) -> None:
        """``seed`` None: in the order of the text."""
        self.count = (tokens.numel() - 1) // length  # a sequence begins with the last token of the one before
        if not self.count:
            raise UsageError(
                f"{tokens.numel()} tokens are too few for a sequence of {length}.",
                "Prepare more text, or choose a shorter context.",
            )
        self._tokens, self._length, self._seed = tokens, length, seed
        self._offsets = torch.arange(length + 1, device=tokens.device)

    def batch(self, first: int, size: int) -> Tensor:
        """Sequences number ``first`` and following: [sequence, position]."""
        passes, places = np.divmod(np.arange(first, first + size), self.count)
        orders = [_order(self._seed, number, self.count) for number in passes.tolist()]
        numbers = np.array([order[place] for order, place in zip(orders, places, strict=True)])
        starts = torch.from_numpy(numbers * self._length).to(self._tokens.device)
        return self._tokens[starts[:, None] + self._offsets].long()


@lru_cache(maxsize=4)
def _order(seed: int | None, number: int, count: int) -> NDArray[np.int64]:
    """The sequences of a pass."""
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, number]).permutation(count)
