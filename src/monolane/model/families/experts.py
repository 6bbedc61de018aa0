"""Reads the keys of mixtures of experts, and joins the weights of experts that a file has one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError
from monolane.model.config import Experts, ModelConfig
from monolane.model.families.keys import TRAINING
from monolane.model.families.limits import EXPERTS_LIMIT, FFN_LIMIT, LAYERS_LIMIT
from monolane.model.format import BF16, Format, QuantRows, groups_of
from monolane.model.settings import Settings
from monolane.model.weights import Bf16Bits, Weights

# Keys of every family with experts that change nothing.
HARMLESS = {"output_router_logits": "returns more, and changes nothing else", "router_aux_loss_coef": TRAINING}


SOFTMAX_OF_ALL = 1  # expert_gating_func of a GGUF file

# Two keys that mean the same in most families: published models have one, and transformers saves the other.
BOTH_KEYS = ("num_experts", "num_local_experts")


def read_counts(settings: Settings, keys: tuple[str, ...] = BOTH_KEYS) -> tuple[int, int]:
    """How many experts there are (by any of the ``keys``), and how many of them are chosen."""
    found = [key for key in keys if settings.get(key) is not None]
    counts = {settings.integer(key, EXPERTS_LIMIT) for key in found or keys[:1]}
    if len(counts) > 1:
        raise settings.wrong(keys[0], f"the same as {keys[1]}")
    count = counts.pop()
    return count, settings.integer("num_experts_per_tok", count)


def read_qwen_experts(settings: Settings, layers: int, keys: tuple[str, ...] = BOTH_KEYS) -> Experts | None:
    """The experts of a Qwen config: in every ``decoder_sparse_step``-th layer, but not in ``mlp_only_layers``. A config
    without ``norm_topk_prob`` means false, whatever the published models have."""
    count, chosen = read_counts(settings, keys)
    step = settings.integer("decoder_sparse_step", LAYERS_LIMIT, default=1)
    dense = settings.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise settings.wrong("mlp_only_layers", "a list of layers")
    found = tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
    ffn = settings.integer("moe_intermediate_size", FFN_LIMIT)
    return Experts(count, chosen, ffn, found, settings.flag("norm_topk_prob")) if any(found) else None


def gguf_experts(settings: Settings, plain: ModelConfig, normalised: bool, gating: int = SOFTMAX_OF_ALL) -> Experts:
    """The experts of a GGUF file, which all layers have. ``normalised``, ``gating``: those of the architecture; a file
    that says otherwise is refused."""
    if settings.get("expert_gating_func") not in (None, 0, gating):
        raise settings.wrong("expert_gating_func", f"{gating} for this architecture")
    count = settings.integer("expert_count", EXPERTS_LIMIT)
    if settings.has("expert_weights_norm") and settings.flag("expert_weights_norm") != normalised:
        raise settings.wrong("expert_weights_norm", f"{normalised} for this architecture")
    return Experts(
        count,
        settings.integer("expert_used_count", count),
        settings.integer("expert_feed_forward_length", FFN_LIMIT, default=plain.ffn),
        (True,) * plain.layers,
        normalised,
    )


class JoinedExperts:
    """Weights in which every expert's matrix has a name of its own (``layers.3.experts.17.gate``), with the names of
    ``weights.py``, by which the matrices of all experts are one. They have one format where all experts have it."""

    def __init__(self, weights: Weights, experts: Experts) -> None:
        self.stored = weights
        self._count = experts.count
        self._formats: dict[str, Format] = {}

    @property
    def identity(self) -> str:
        return self.stored.identity

    @property
    def converted(self) -> bool:
        return self.stored.converted

    @property
    def widened(self) -> tuple[str, ...]:
        return self.stored.widened

    def shape(self, name: str) -> tuple[int, ...]:
        if not _is_joined(name):
            return self.stored.shape(name)
        shapes = {self.stored.shape(of_expert(name, expert)) for expert in range(self._count)}
        if len(shapes) > 1:
            raise ModelFileError(
                f"{name!r}: experts have different shapes.", "The files are damaged; fetch them again."
            )
        rows, *cols = shapes.pop()
        return self._count * rows, *cols

    def format(self, name: str) -> Format:
        if not _is_joined(name):
            return self.stored.format(name)
        if name not in self._formats:
            found = {self.stored.format(of_expert(name, expert)) for expert in range(self._count)}
            format = found.pop()
            # Every expert has an order of columns of its own, and one matrix has one.
            self._formats[name] = BF16 if found or format.ordered else format
        return self._formats[name]

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if not _is_joined(name):
            return self.stored.rows(name, start, stop)
        parts = [self.stored.rows(part, first, last) for part, first, last in self._parts(name, start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        if not _is_joined(name):
            return self.stored.quants(name, start, stop)
        parts = [self.stored.quants(part, first, last) for part, first, last in self._parts(name, start, stop)]
        if len(parts) == 1:
            return parts[0]
        joined = QuantRows.zeros(self.format(name), stop - start, groups_of(self.shape(name)[1]))
        done = 0
        for part in parts:
            joined.put(slice(done, done + len(part)), part)
            done += len(part)
        return joined

    def vector(self, name: str) -> NDArray[np.float32]:
        return self.stored.vector(name)

    def _parts(self, name: str, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Where rows [start, stop) come from: (matrix of an expert, its first row, its last row + 1)."""
        each = self.stored.shape(of_expert(name, 0))[0]
        for expert in range(start // each, -(-stop // each)):
            base = expert * each
            yield of_expert(name, expert), max(start - base, 0), min(stop - base, each)


def _is_joined(name: str) -> bool:
    return ".experts." in name


def of_expert(name: str, expert: int) -> str:
    """``layers.3.experts.gate`` -> ``layers.3.experts.17.gate``"""
    layer, _, part = name.partition(".experts.")
    return f"{layer}.experts.{expert}.{part}"
