"""The judge of our results on real models: transformers, reading the same GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # [tokens, vocabulary]


@dataclass(frozen=True)
class Verdict:
    """What transformers says after each token of a text, from the file's weights widened to fp32."""

    exact: Logits  # computed in fp32
    rounded: Logits  # weights rounded to bf16 and computed in bf16, as most people run it


def judge(gguf: Path, tokens: Sequence[int]) -> Verdict:
    """Both readings of a text. The model, four bytes for every weight, is gone again when this returns."""
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    exact = _logits(model, tokens)
    return Verdict(exact, _logits(model.bfloat16(), tokens))


def mean_divergence(truth: Logits, guess: Logits) -> float:
    """Mean Kullback-Leibler divergence of the two distributions over the next token, in nats."""
    rows = []
    for true_row, guessed_row in zip(truth, guess, strict=True):
        true_log, guessed_log = _log_softmax(true_row), _log_softmax(guessed_row)
        rows.append(np.sum(np.exp(true_log) * (true_log - guessed_log)))
    return float(np.mean(rows))


def agreement(truth: Logits, guess: Logits) -> float:
    """How often both find the same token likeliest: 0 to 1."""
    return float(np.mean(truth.argmax(axis=1) == guess.argmax(axis=1)))


def _log_softmax(row: Logits) -> NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def _logits(model: torch.nn.Module, tokens: Sequence[int]) -> Logits:
    with torch.no_grad():
        result: Logits = model(torch.tensor([list(tokens)])).logits[0].float().numpy()
    return result
