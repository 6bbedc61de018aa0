"""The reference for our results: transformers with the same weights, in fp32 and in bf16."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import masking_utils
from transformers.models.gpt_oss import modeling_gpt_oss

from monolane.bench.peers.transformers_peer import settings_of
from monolane.model.config import ModelConfig
from monolane.model.families.gpt_oss import file_name  # as in all families, and of sinks
from monolane.model.weights import Weights, expected_shapes, matrix_values

Logits = NDArray[np.float32]  # [tokens, vocabulary]

# Where transformers computes. Its fp32 on a GPU is fp32: no TF32 unless one asks for it, and nobody does.
JUDGES_ON = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Verdict:
    """What transformers says after each token of a text."""

    exact: Logits  # computed in fp32
    rounded: Logits  # weights rounded to bf16 and computed in bf16, as most people run it


def judge(file: Path, tokens: Sequence[int]) -> Verdict:
    """Both readings of a text, from a GGUF file's weights as transformers itself reads them, widened to fp32. The
    model, four bytes for every weight, is gone again when this returns."""
    with _quick_gguf():
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return _read(model, tokens)


def judge_weights(config: ModelConfig, weights: Weights, tokens: Sequence[int]) -> Verdict:
    """Both readings of a text, from weights as our reader hands them on: where matrices are bf16 already, so that
    what is judged is the computing alone."""
    return _read(_twin(config, weights), tokens)


def near_enough(verdict: Verdict, ours: Logits) -> dict[str, float]:
    """Our logits are as near to fp32 as those of transformers in bf16. The numbers, for reports."""
    exact, rounded = verdict.exact[: len(ours)], verdict.rounded[: len(ours)]
    assert np.isfinite(ours).all()
    numbers = {
        "tokens": float(len(ours)),
        "divergence": mean_divergence(exact, ours),
        "divergence_of_bf16": mean_divergence(exact, rounded),
        "agreement": agreement(exact, ours),
        "agreement_of_bf16": agreement(exact, rounded),
    }
    assert numbers["divergence"] <= 1.1 * numbers["divergence_of_bf16"], numbers
    return numbers


def pass_gate(verdict: Verdict, ours: Logits) -> dict[str, float]:
    """The accuracy gate, on real text: near enough, and greedy tokens agree as often. Random weights have too many ties
    for the second half."""
    numbers = near_enough(verdict, ours)
    assert numbers["agreement"] >= numbers["agreement_of_bf16"], numbers
    return numbers


def mean_divergence(truth: Logits, guess: Logits) -> float:
    """Mean Kullback-Leibler divergence of the two distributions over the next token, in nats."""
    rows = []
    for true_row, guessed_row in zip(truth, guess, strict=True):
        true_log, guessed_log = log_softmax(true_row), log_softmax(guessed_row)
        rows.append(np.sum(np.exp(true_log) * (true_log - guessed_log)))
    return float(np.mean(rows))


def agreement(truth: Logits, guess: Logits) -> float:
    """How often both find the same token likeliest: 0 to 1."""
    return float(np.mean(truth.argmax(axis=1) == guess.argmax(axis=1)))


def log_softmax(rows: Logits) -> NDArray[np.float64]:
    """Of the last axis."""
    shifted = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


@contextmanager
def _quick_gguf() -> Iterator[None]:
    """The same bytes in less than half the time: a vocabulary is read as millions of views, which are slow where they
    are views of a memmap; the file is read once, not once for its config and once for its weights; and the table of
    names is made once, not once for every module of the model."""
    import gguf

    def mapped(*given: Any, real: Any = np.memmap, **named: Any) -> NDArray[np.uint8]:
        return np.asarray(real(*given, **named))

    names = functools.cache(gguf.get_tensor_name_map)
    reader = functools.cache(gguf.GGUFReader)
    with (
        mock.patch.object(np, "memmap", mapped),
        mock.patch.object(gguf, "GGUFReader", reader),
        mock.patch.object(gguf, "get_tensor_name_map", names),
    ):
        yield


def _twin(config: ModelConfig, weights: Weights) -> Any:
    """A model of transformers in fp32, made of a config and weights of ours."""
    name, settings = settings_of(config)
    with torch.device(JUDGES_ON):
        model = getattr(transformers, name)(settings).eval()
    if config.sinks:
        _add_sinks(model, config.heads)
    model.load_state_dict(_state(config, weights))
    return model


def _add_sinks(model: Any, heads: int) -> None:
    """Give a model of any family the attention of gpt-oss, the only one with sinks."""
    transformers.AttentionInterface.register("sinks", modeling_gpt_oss.eager_attention_forward)
    transformers.AttentionMaskInterface.register("sinks", masking_utils.eager_mask)
    model.set_attn_implementation("sinks")
    for layer in model.model.layers:
        layer.self_attn.sinks = torch.nn.Parameter(torch.empty(heads, device=JUDGES_ON))


def _state(config: ModelConfig, weights: Weights) -> dict[str, torch.Tensor]:
    """The weights under the names of transformers, in fp32, which holds every format exactly."""
    state: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config):
        if len(shape) == 2:
            state[file_name(name)] = torch.from_numpy(matrix_values(weights, name, 0, shape[0]))
        else:
            state[file_name(name)] = torch.from_numpy(np.array(weights.vector(name)))
    if config.tied:
        state[file_name("head")] = state[file_name("embed")]
    return state


def _read(model: Any, tokens: Sequence[int]) -> Verdict:
    model = model.to(JUDGES_ON)
    exact = _logits(model, tokens)
    return Verdict(exact, _logits(model.bfloat16(), tokens))


def _logits(model: torch.nn.Module, tokens: Sequence[int]) -> Logits:
    with torch.no_grad():
        result: Logits = model(torch.tensor([list(tokens)], device=JUDGES_ON)).logits[0].float().cpu().numpy()
    return result
