"""What the families have in common: they are all read as a plain Llama first, then say where they differ."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import ModelConfig, Rope
from monolane.model.families.names import gguf_name
from monolane.model.families.rope import linear_rope, read_rope
from monolane.model.settings import Settings

# Above what any model has; with them every size that is computed from a config stays small enough to reason about.
HIDDEN_LIMIT = 1 << 17
LAYERS_LIMIT = 1 << 10
HEADS_LIMIT = 1 << 10
HEAD_DIM_LIMIT = 1 << 10
FFN_LIMIT = 1 << 20
VOCAB_LIMIT = 1 << 22
CONTEXT_LIMIT = 1 << 24


@dataclass(frozen=True)
class Family:
    """An architecture. Adding one: a file beside this one that defines FAMILY, and a line in ``families/__init__.py``.

    ``refine`` takes the config as read for a plain Llama, and returns it with what this family reads besides.
    """

    name: str  # also the ``model_type`` of a Hugging Face config
    architecture: str  # as in the ``architectures`` of a Hugging Face config
    refine: Callable[[Settings, ModelConfig], ModelConfig]
    gguf_architecture: str | None = None  # None: GGUF files of this family go under another family's name
    gguf_interleaved: bool = False  # GGUF keeps the rows of q and k for rotating neighbouring pairs
    qkv_bias: bool = False  # always there
    qk_norm: bool = False

    def huggingface_config(self, settings: Settings) -> ModelConfig:
        """The config a ``config.json`` describes."""
        _refuse_unsupported(settings)
        hidden = settings.integer("hidden_size", HIDDEN_LIMIT)
        layers = settings.integer("num_hidden_layers", LAYERS_LIMIT)
        heads = settings.integer("num_attention_heads", HEADS_LIMIT)
        head_dim = settings.integer("head_dim", HEAD_DIM_LIMIT, default=hidden // heads)
        plain = ModelConfig(
            family=self.name,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=settings.integer("num_key_value_heads", HEADS_LIMIT, default=heads),
            head_dim=head_dim,
            ffn=settings.integer("intermediate_size", FFN_LIMIT),
            vocab=settings.integer("vocab_size", VOCAB_LIMIT),
            context=settings.integer("max_position_embeddings", CONTEXT_LIMIT),
            norm_eps=settings.number("rms_norm_eps", 1e-6),
            rope=read_rope(settings, head_dim),
            windows=(None,) * layers,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            tied=settings.flag("tie_word_embeddings"),
        )
        return _checked(self.refine(settings, plain), settings.source)

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
        if settings.get("expert_count") not in (None, 0):
            raise UnsupportedModelError(f"{settings.source} is a mixture of experts.", "Use a dense model.")
        # Zero is how some writers say that there is no window.
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
            context=settings.integer("context_length", CONTEXT_LIMIT),
            norm_eps=settings.number("attention.layer_norm_rms_epsilon"),
            rope=_gguf_rope(settings, head_dim, rope_factors),
            windows=(window,) * layers,
            qkv_bias=self.qkv_bias or biased("q", "k", "v"),
            o_bias=biased("o"),
            mlp_bias=biased("gate", "up", "down"),
            qk_norm=self.qk_norm,
            tied=gguf_name("head") not in tensors,
        )
        return _checked(config, settings.source)


def layer_windows(settings: Settings, layers: int) -> tuple[int | None, ...]:
    """Sliding windows as Qwen configs have them: switched on as a whole, and used by some of the layers."""
    window = None
    if settings.flag("use_sliding_window"):
        window = settings.integer("sliding_window", CONTEXT_LIMIT, default=4096)
    kinds = settings.get("layer_types")
    if kinds is None:
        if window is None:
            return (None,) * layers
        first = 0 if settings.get("max_window_layers") == 0 else settings.integer("max_window_layers", LAYERS_LIMIT, 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise settings.wrong("layer_types", f"a list of {layers} layers")
    if not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise settings.wrong("layer_types", "full_attention or sliding_attention for every layer")
    if window is None and "sliding_attention" in kinds:
        raise settings.wrong("sliding_window", "a number, for layer_types asks for windows")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _refuse_unsupported(settings: Settings) -> None:
    quantization = settings.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModelError(
            f"{settings.source}: weights quantised by {method} (quantization_config) are not supported.",
            "Use the unquantised model, or a GGUF file.",
        )
    activation = settings.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{settings.source}: hidden_act is {activation!r}; only silu is supported.", "Use another model."
        )


def _gguf_rope(settings: Settings, head_dim: int, factors: Sequence[float] | None) -> Rope:
    theta = settings.number("rope.freq_base", 10_000.0)
    kind = settings.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{settings.source}: rotary scaling of type {kind!r} is not supported.", "Use another model."
        )
    if factors is not None:
        if len(factors) != head_dim // 2 or not all(0 < factor < float("inf") for factor in factors):
            raise ModelFileError(
                f"{settings.source}: rope_freqs.weight should have {head_dim // 2} numbers above zero.",
                "The file is damaged; fetch it again.",
            )
        return Rope(theta, tuple(factors))
    if kind == "linear":
        return linear_rope(theta, settings.number("rope.scaling.factor"), head_dim)
    return Rope(theta)


def _has_window(settings: Settings) -> bool:
    return settings.get("attention.sliding_window") not in (None, 0)


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    """The rules between the numbers; each number alone was checked as it was read."""
    if config.heads % config.kv_heads:
        broken = f"{config.heads} attention heads cannot share {config.kv_heads} key/value heads"
    elif config.head_dim % 2:
        broken = f"a head of {config.head_dim} cannot be rotated in pairs"
    elif config.norm_eps >= 1.0:
        broken = f"a norm's epsilon of {config.norm_eps} is too large"
    else:
        return config
    raise ModelFileError(f"{source}: {broken}.", "The file is damaged; fetch it again.")
