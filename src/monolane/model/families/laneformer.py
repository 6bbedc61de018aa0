"""Laneformer: a transformer with delayed tensor parallelism. Every lane has a residual stream of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import HeadKind, LaneConfig, ModelConfig
from monolane.model.families.limits import CONTEXT_LIMIT, LAYERS_LIMIT
from monolane.model.families.shared import Family
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights
from monolane.model.weights import Bf16Bits, Unquantised

LANES_LIMIT = 64
_HEADS: dict[str, HeadKind] = {"replicate": "replicate", "vocab_parallel": "vocab_parallel", "lane": "lane"}

# canonical: in the file
_OUTSIDE = {"embed": "model.tok_embeddings.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_IN_LAYER = {
    "attn_norm": "attention_norm.weight",
    "q": "attention.wq.weight",
    "k": "attention.wk.weight",
    "v": "attention.wv.weight",
    "o": "attention.wo.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "feed_forward.w1.weight",
    "down": "feed_forward.w2.weight",
    "up": "feed_forward.w3.weight",
}
_COLUMN_PARALLEL = ("o", "down")  # [lane, out, in / lanes]; the other matrices are [lane, out / lanes, in]


def file_name(name: str) -> str:
    """``layers.3.q`` -> ``model.layers.3.attention.wq.weight``"""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_IN_LAYER[part]}"


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    count = settings.integer("num_lanes", LANES_LIMIT)
    config = replace(plain, norm_eps=settings.number("norm_eps"), windows=lane_windows(settings, plain.layers))
    lanes = LaneConfig(
        count=count,
        delay=broadcast_delay(settings),
        exchanges_attention=settings.flag("use_attention_comm", settings.flag("use_comm", True)),
        exchanges_mlp=settings.flag("use_mlp_comm", settings.flag("use_comm", True)),
        early_sums=settings.flag("use_early_comm"),
        head=_head(settings),
        sums_before_norm=settings.flag("pre_norm_lane_agg"),
        shares_norms=settings.flag("replicated_rmsn_scale", True),
    )
    if count == 1:
        return config  # a plain transformer, whatever it says of exchanges
    divided = {"attention heads": config.heads, "key/value heads": config.kv_heads, "FFN rows": config.ffn}
    if lanes.head == "vocab_parallel":
        divided["tokens of the vocabulary"] = config.vocab
    for name, size in divided.items():
        if size % count:
            raise ModelFileError(
                f"{settings.source}: {count} lanes cannot share {size} {name} evenly.",
                "The file is damaged; fetch it again.",
            )
    if lanes.sums_before_norm and (lanes.head != "replicate" or not lanes.shares_norms):
        raise UnsupportedModelError(
            f"{settings.source}: pre_norm_lane_agg belongs to lm_head_type 'replicate' and norms that lanes share.",
            "Other combinations are not supported; use another model.",
        )
    if config.tied and lanes.head == "lane":
        raise ModelFileError(
            f"{settings.source}: a head over all lanes cannot be tied to the embedding.",
            "Set tie_word_embeddings to false.",
        )
    return replace(config, lanes=lanes)


def broadcast_delay(settings: Settings) -> int:
    """In layers. 0 is allowed: then every lane adds all outputs at once, as in plain tensor parallelism."""
    return 0 if settings.get("broadcast_delay") == 0 else settings.integer("broadcast_delay", LAYERS_LIMIT)


def _head(settings: Settings) -> HeadKind:
    kind = settings.text("lm_head_type", "replicate")
    if kind not in _HEADS:
        raise UnsupportedModelError(
            f"{settings.source}: lm_head_type is {kind!r}, which is not supported.",
            f"Supported are {', '.join(_HEADS)}.",
        )
    return _HEADS[kind]


def lane_windows(settings: Settings, layers: int) -> tuple[int | None, ...]:
    """The first n layers have the window, or the last -n, or those of a list; all but ``unclamped_layers``."""
    number, listed = settings.get("sliding_window_n_layers"), settings.get("swa_layers")
    unclamped = _layer_list(settings, "unclamped_layers", layers)
    if settings.get("sliding_window") is None:
        return (None,) * layers
    window = settings.integer("sliding_window", CONTEXT_LIMIT)
    if listed is not None:
        chosen = _layer_list(settings, "swa_layers", layers)
    elif isinstance(number, int) and not isinstance(number, bool) and -layers <= number <= layers:
        chosen = set(range(number)) if number >= 0 else set(range(layers + number, layers))
    else:
        raise settings.wrong("sliding_window_n_layers", f"the number of layers with a window, {-layers} to {layers}")
    return tuple(window if layer in chosen - unclamped else None for layer in range(layers))


def _layer_list(settings: Settings, key: str, layers: int) -> set[int]:
    found = settings.get(key)
    if found is None:
        return set()
    if not isinstance(found, list) or not all(type(layer) is int and 0 <= layer < layers for layer in found):
        raise settings.wrong(key, f"a list of layers from 0 to {layers - 1}")
    return set(found)


class LaneformerWeights(Unquantised):
    """The weights of a Laneformer's files as those of one model: the lanes' parts of each matrix put together."""

    def __init__(self, tensors: Mapping[str, StoredTensor], config: ModelConfig) -> None:
        self._count = config.lanes.count if config.lanes else 1
        self._tensors = {_known_name(name): _flat(name, tensor) for name, tensor in tensors.items()}
        # RoPE rotates neighbouring pairs.
        self._stored = StoredWeights(self._tensors, file_name, interleaved_head=config.head_dim)

    @property
    def identity(self) -> str:
        return self._stored.identity

    @property
    def converted(self) -> bool:
        return self._stored.converted

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._stored.shape(name)
        if name.rpartition(".")[2] in _COLUMN_PARALLEL and len(shape) == 2:
            return shape[0] // self._count, shape[1] * self._count
        return shape

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if name.rpartition(".")[2] not in _COLUMN_PARALLEL:
            return self._stored.rows(name, start, stop)
        height = self._stored.shape(name)[0] // self._count
        return np.concatenate(
            [self._stored.rows(name, first + start, first + stop) for first in range(0, self._count * height, height)],
            axis=1,
        )

    def vector(self, name: str) -> NDArray[np.float32]:
        return self._stored.vector(name)


def _known_name(name: str) -> str:
    """Norm weights that differ from lane to lane have another name in the file."""
    return f"{name.removesuffix('.scale')}.weight" if name.endswith("norm.scale") else name


def _flat(name: str, tensor: StoredTensor) -> StoredTensor:
    """The lanes' parts of a matrix below each other, those of a norm one after the other."""
    shape = tensor.shape
    if len(shape) == 3:
        return replace(tensor, shape=(shape[0] * shape[1], shape[2]))
    is_norm = name.endswith(("norm.scale", "norm.weight"))
    return replace(tensor, shape=(shape[0] * shape[1],)) if is_norm and len(shape) == 2 else tensor


FAMILY = Family("laneformer_tp", None, _refine, file_name=file_name, weights=LaneformerWeights)
