"""The common part of all families: a config is read as that of a plain Llama, then the family refines it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import ModelConfig, Rope
from monolane.model.families.keys import refuse_unsupported_gguf_keys, refuse_unsupported_keys
from monolane.model.families.limits import (
    CONTEXT_LIMIT,
    FFN_LIMIT,
    HEAD_DIM_LIMIT,
    HEADS_LIMIT,
    HIDDEN_LIMIT,
    LAYERS_LIMIT,
    VOCAB_LIMIT,
)
from monolane.model.families.names import gguf_name, huggingface_name
from monolane.model.families.rope import YARN_FAST, YARN_SLOW, linear_rope, read_rope, yarn_rope
from monolane.model.huggingface_quants import Scheme
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor
from monolane.model.weights import Weights


@dataclass(frozen=True)
class Family:
    """An architecture. To add one, write a file in this folder that defines FAMILY, and add its name to
    ``families/__init__.py``.

    ``refine`` gets the config that was read for a plain Llama, and returns it with the keys that only this family has.
    """

    name: str  # also the ``model_type`` of a Hugging Face config
    architecture: (
        str | None
    )  # as in the ``architectures`` of a Hugging Face config; None: transformers has no such class
    refine: Callable[[Settings, ModelConfig], ModelConfig]
    file_name: Callable[[str], str] = huggingface_name  # of a tensor in a safetensors file, by its canonical name
    weights: Callable[[Mapping[str, StoredTensor], ModelConfig], Weights] | None = None  # None: as they are stored
    gguf_architecture: str | None = None  # None: GGUF files of this family have another family's name
    gguf_refine: Callable[[Settings, ModelConfig], ModelConfig] | None = None  # the same for GGUF; None: nothing to add
    gguf_name: Callable[[str], str] = gguf_name  # of a tensor in a GGUF file, by its canonical name
    gguf_interleaved: bool = False  # in GGUF files, rows of q and k are ordered for RoPE over neighbouring pairs
    qkv_bias: bool = False  # every model of the family has these biases
    qk_norm: bool = False
    joins_experts: bool = False  # a Hugging Face file has the matrices of all experts in one tensor
    harmless: Mapping[str, str] = field(default_factory=dict)  # keys that change nothing -> the reason, as in keys.py

    def huggingface_config(self, settings: Settings) -> ModelConfig:
        """The config that a ``config.json`` describes."""
        _refuse_unsupported(settings)
        refuse_unsupported_keys(settings)
        hidden = settings.integer("hidden_size", HIDDEN_LIMIT)
        layers = settings.integer("num_hidden_layers", LAYERS_LIMIT)
        heads = settings.integer("num_attention_heads", HEADS_LIMIT)
        head_dim = settings.integer("head_dim", HEAD_DIM_LIMIT, default=hidden // heads)
        context = settings.integer("max_position_embeddings", CONTEXT_LIMIT)
        plain = ModelConfig(
            family=self.name,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=settings.integer("num_key_value_heads", HEADS_LIMIT, default=heads),
            head_dim=head_dim,
            ffn=settings.integer("intermediate_size", FFN_LIMIT),
            vocab=settings.integer("vocab_size", VOCAB_LIMIT),
            context=context,
            norm_eps=settings.number("rms_norm_eps", 1e-6),
            rope=read_rope(settings, head_dim, context),
            windows=(None,) * layers,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            tied=settings.flag("tie_word_embeddings"),
        )
        config = self.refine(settings, plain)
        if "sliding_window" not in settings.asked:
            _refuse_windows(settings, config)
        return _checked(config, settings.source)

    def gguf_config(
        self, settings: Settings, vocab: int, tensors: Container[str], rope_factors: Sequence[float] | None
    ) -> ModelConfig:
        """The config that a GGUF file's metadata, the names of its tensors and its ``rope_freqs`` describe."""
        hidden = settings.integer("embedding_length", HIDDEN_LIMIT)
        layers = settings.integer("block_count", LAYERS_LIMIT)
        heads = settings.integer("attention.head_count", HEADS_LIMIT)
        head_dim = settings.integer("attention.key_length", HEAD_DIM_LIMIT, default=hidden // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if settings.integer(key, HEAD_DIM_LIMIT, default=head_dim) != head_dim:
                raise UnsupportedModelError(
                    f"{settings.source}: {settings.prefix}{key} differs from the head size {head_dim}.",
                    "Such attention is not supported; use another model.",
                )
        context = settings.integer("context_length", CONTEXT_LIMIT)
        # Some converters write 0 for no window.
        window = settings.integer("attention.sliding_window", CONTEXT_LIMIT) if _has_window(settings) else None

        def biased(*parts: str) -> bool:
            return any(gguf_name(f"layers.0.{part}.bias") in tensors for part in parts)

        config = ModelConfig(
            family=self.name,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=settings.integer("attention.head_count_kv", HEADS_LIMIT, default=heads),
            head_dim=head_dim,
            ffn=settings.integer("feed_forward_length", FFN_LIMIT),
            vocab=vocab,
            context=context,
            norm_eps=settings.number("attention.layer_norm_rms_epsilon"),
            rope=gguf_rope(settings, head_dim, context, rope_factors),
            windows=(window,) * layers,
            qkv_bias=self.qkv_bias or biased("q", "k", "v"),
            o_bias=biased("o"),
            mlp_bias=biased("gate", "up", "down"),
            qk_norm=self.qk_norm,
            tied=gguf_name("head") not in tensors,
        )
        if self.gguf_refine:
            config = self.gguf_refine(settings, config)
        if config.experts is None and settings.get("expert_count") not in (None, 0):
            raise UnsupportedModelError(
                f"{settings.source} is a mixture of experts (expert_count), which the family {self.name} has not.",
                "Use another model.",
            )
        refuse_unsupported_gguf_keys(settings)
        return _checked(config, settings.source)


def layer_windows(settings: Settings, layers: int) -> tuple[int | None, ...]:
    """The windows of a Qwen config: one switch for all, and the number of lower layers that have none."""
    window = read_window(settings)
    if not settings.flag("use_sliding_window"):
        window = None
    first = 0 if settings.get("max_window_layers") == 0 else settings.integer("max_window_layers", LAYERS_LIMIT, 28)
    return windows_by_kind(settings, layers, window, (None,) * min(first, layers) + (window,) * (layers - first))


def read_window(settings: Settings) -> int | None:
    """The window of a config where a missing key means 4096, and null means no window."""
    if settings.has("sliding_window") and settings.get("sliding_window") is None:
        return None
    return settings.integer("sliding_window", CONTEXT_LIMIT, default=4096)


def switched_window(settings: Settings) -> int | None:
    """The same, but None where windows are not switched on; then any number is allowed, also 0."""
    settings.get("sliding_window")
    return read_window(settings) if settings.flag("use_sliding_window") else None


def windows_by_kind(
    settings: Settings, layers: int, window: int | None, default: tuple[int | None, ...]
) -> tuple[int | None, ...]:
    """The window of every layer, by the list ``layer_types``; ``default`` where the config has no such list."""
    kinds = settings.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise settings.wrong("layer_types", f"a list of {layers} layers")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise settings.wrong("layer_types", "full_attention or sliding_attention for every layer")
    if window is None and "sliding_attention" in kinds:
        raise settings.wrong("sliding_window", "a number, for layer_types asks for windows")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def equal_windows(settings: Settings, layers: int, window: int | None) -> tuple[int | None, ...]:
    """The windows of a family whose layers all have the same: ``layer_types`` must not say otherwise."""
    windows = (window,) * layers
    if windows_by_kind(settings, layers, window, windows) != windows:
        raise settings.wrong(
            "layer_types", "the same for all layers in this family, and sliding_attention with a window"
        )
    return windows


def _refuse_windows(settings: Settings, config: ModelConfig) -> None:
    """Refuse windows in the config of a family that has none: the cache of transformers would still apply them."""
    window = None if settings.get("sliding_window") is None else settings.integer("sliding_window", CONTEXT_LIMIT)
    windows = windows_by_kind(settings, config.layers, window, (window,) * config.layers)
    if any(window is not None and window < config.context for window in windows):
        raise UnsupportedModelError(
            f"{settings.source}: sliding_window is {window}, which a model of the family {config.family} cannot have.",
            "Remove the key if the model was trained without windows; otherwise its model_type should be another.",
        )


def _refuse_unsupported(settings: Settings) -> None:
    Scheme.of(settings)
    activation = settings.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{settings.source}: hidden_act is {activation!r}; only silu is supported.", "Use another model."
        )


def gguf_rope(
    settings: Settings, head_dim: int, context: int, factors: Sequence[float] | None, truncate: bool = True
) -> Rope:
    """Read as llama.cpp does: a missing type means linear, a missing factor or 0 means 1, and ``rope_freqs`` multiply
    the factor. ``truncate``: YaRN interpolates between whole pairs."""
    theta = settings.number("rope.freq_base", 10_000.0)
    kind = settings.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn") or (kind == "yarn" and factors is not None):
        raise UnsupportedModelError(
            f"{settings.source}: rotary scaling of type {kind!r} is not supported.", "Use another model."
        )
    old_key, new_key = "rope.scale_linear", "rope.scaling.factor"
    keys = [key for key in (new_key, old_key) if settings.has(key)]
    scale = 1.0
    if kind != "none" and keys and settings.get(keys[0]) != 0:
        scale = settings.number(keys[0])
    if factors is not None:
        if len(factors) != head_dim // 2 or not all(0 < factor < float("inf") for factor in factors):
            raise ModelFileError(
                f"{settings.source}: rope_freqs.weight should have {head_dim // 2} numbers above zero.",
                "The file is damaged; fetch it again.",
            )
        return Rope(theta, tuple(scale * factor for factor in factors))
    if kind == "yarn" and scale != 1.0:
        return yarn_rope(
            theta,
            scale,
            head_dim,
            settings.integer("rope.scaling.original_context_length", CONTEXT_LIMIT, default=context),
            settings.number("rope.scaling.yarn_beta_fast", YARN_FAST),
            settings.number("rope.scaling.yarn_beta_slow", YARN_SLOW),
            truncate=truncate,
        )
    return Rope(theta) if scale == 1.0 else linear_rope(theta, scale, head_dim)


def _has_window(settings: Settings) -> bool:
    return settings.get("attention.sliding_window") not in (None, 0)


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    """Check the relations between numbers. Each number alone was checked when it was read."""
    if config.heads % config.kv_heads:
        broken = f"{config.heads} attention heads cannot share {config.kv_heads} key/value heads"
    elif config.head_dim % 2:
        broken = f"a head of {config.head_dim} cannot be rotated in pairs"
    elif config.norm_eps >= 1.0:
        broken = f"a norm's epsilon of {config.norm_eps} is too large"
    elif not _fits_fp32(config.rope.inverse_frequencies(config.head_dim)):
        broken = f"rotary embedding with theta {config.rope.theta} and these factors has frequencies too large for fp32"
    else:
        return config
    raise ModelFileError(f"{source}: {broken}.", "The file is damaged; fetch it again.")


def _fits_fp32(values: NDArray[np.float64]) -> bool:
    return bool(np.all(values <= np.finfo(np.float32).max))
