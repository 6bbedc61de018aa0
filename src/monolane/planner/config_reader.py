"""Reads a shape from a ``config.json``. Only sizes are read, so there are more families here than Monolane can run."""

from __future__ import annotations

from collections.abc import Callable

from monolane.errors import UnsupportedModelError
from monolane.model.families.laneformer import broadcast_delay, lane_windows
from monolane.model.families.limits import (
    CONTEXT_LIMIT,
    FFN_LIMIT,
    HEAD_DIM_LIMIT,
    HEADS_LIMIT,
    HIDDEN_LIMIT,
    LAYERS_LIMIT,
    VOCAB_LIMIT,
)
from monolane.model.families.shared import layer_windows, read_window
from monolane.model.settings import Settings
from monolane.planner.feedforward import Dense, Experts
from monolane.planner.mixers import CompressedAttention, GroupedAttention, LatentAttention, LinearAttention
from monolane.planner.parts import FeedForward, Mixer
from monolane.planner.shape import Layer, Shape

EXPERTS_LIMIT = 1 << 14
STREAMS_LIMIT = 1 << 6
RANK_LIMIT = 1 << 16

LayersOf = Callable[[Settings, int], list[Layer]]
WindowsOf = Callable[[Settings, int], tuple[int | None, ...]]

_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {_SLIDING: 0, _SPARSE: 4, _HEAVY: 128}
_BY_RATIO = {rate: kind for kind, rate in _RATES.items()}


def language_part(settings: Settings) -> Settings:
    """The settings of the language model in a multimodal model, with some keys of the whole; others unchanged."""
    text = settings.get("text_config")
    if not isinstance(text, dict):
        return settings
    outer = {key: settings.get(key) for key in ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype")}
    return Settings({**outer, **text}, f"{settings.source}: text_config")


def read_shape(settings: Settings) -> Shape:
    """The shape that a config describes; raises for a family that the planner does not know."""
    family = settings.text("model_type")
    if family not in FAMILIES:
        raise UnsupportedModelError(
            f"{settings.source}: the planner does not know what a model of the family {family!r} is made of.",
            f"It knows {', '.join(FAMILIES)}.",
        )
    count = settings.integer("num_hidden_layers", LAYERS_LIMIT)
    return Shape(
        hidden=settings.integer("hidden_size", HIDDEN_LIMIT),
        vocab=settings.integer("vocab_size", VOCAB_LIMIT),
        tied=settings.flag("tie_word_embeddings"),
        context=settings.integer("max_position_embeddings", CONTEXT_LIMIT),
        layers=tuple(FAMILIES[family](settings, count)),
    )


def read_delay(settings: Settings) -> int:
    """Modules, of which a layer has two, by which the model was trained to receive the other lanes' results later."""
    return 2 * broadcast_delay(settings) if settings.get("model_type") == "laneformer_tp" else 0


def _dense(windows_of: WindowsOf, qkv_bias: bool = False, qk_norm: bool = False) -> LayersOf:
    """The reader for Llama and families like it."""

    def layers(settings: Settings, count: int) -> list[Layer]:
        bias = settings.flag("attention_bias")
        ffn = Dense(settings.integer("intermediate_size", FFN_LIMIT), settings.flag("mlp_bias"))
        return [
            Layer(_grouped(settings, window, qkv_bias or bias, bias, qk_norm), ffn)
            for window in windows_of(settings, count)
        ]

    return layers


def _no_windows(settings: Settings, count: int) -> tuple[int | None, ...]:
    return (None,) * count


def _same_windows(settings: Settings, count: int) -> tuple[int | None, ...]:
    return (read_window(settings),) * count


def _mixtral(settings: Settings, count: int) -> list[Layer]:
    experts = Experts(*_expert_counts(settings), settings.integer("intermediate_size", FFN_LIMIT))
    return [Layer(_grouped(settings, _optional(settings, "sliding_window")), experts)] * count


def _gpt_oss(settings: Settings, count: int) -> list[Layer]:
    window = settings.integer("sliding_window", CONTEXT_LIMIT)
    bias = settings.flag("attention_bias", True)
    ffn = settings.integer("intermediate_size", FFN_LIMIT)
    experts = Experts(*_expert_counts(settings), ffn, bias=True)
    alternate = [_FULL if layer % 2 else _SLIDING for layer in range(count)]
    return [
        Layer(_grouped(settings, window if kind == _SLIDING else None, bias, bias, sinks=True), experts)
        for kind in _kinds(settings, count, alternate, (_FULL, _SLIDING))
    ]


def _qwen3_moe(settings: Settings, count: int) -> list[Layer]:
    bias = settings.flag("attention_bias")
    window = read_window(settings) if settings.flag("use_sliding_window") else None
    mixer = _grouped(settings, window, bias, bias, qk_norm=True)
    return [Layer(mixer, ffn) for ffn in _qwen_feed_forwards(settings, count)]


def _qwen3_next(settings: Settings, count: int) -> list[Layer]:
    bias = settings.flag("attention_bias")
    full = _grouped(settings, None, bias, bias, qk_norm=True, gated=True)
    linear = LinearAttention(
        settings.integer("linear_num_key_heads", HEADS_LIMIT),
        settings.integer("linear_num_value_heads", HEADS_LIMIT),
        settings.integer("linear_key_head_dim", HEAD_DIM_LIMIT),
        settings.integer("linear_value_head_dim", HEAD_DIM_LIMIT),
        settings.integer("linear_conv_kernel_dim", HEAD_DIM_LIMIT),
    )
    every = settings.integer("full_attention_interval", LAYERS_LIMIT, default=4)
    default = [_LINEAR if (layer + 1) % every else _FULL for layer in range(count)]
    kinds = _kinds(settings, count, default, (_FULL, _LINEAR))
    mixers: list[Mixer] = [linear if kind == _LINEAR else full for kind in kinds]
    shared = settings.integer("shared_expert_intermediate_size", FFN_LIMIT)
    ffns = _qwen_feed_forwards(settings, count, shared)
    return [Layer(mixer, ffn) for mixer, ffn in zip(mixers, ffns, strict=True)]


def _qwen_feed_forwards(settings: Settings, count: int, shared: int = 0) -> list[FeedForward]:
    """Experts in every ``decoder_sparse_step``-th layer, except in those that ``mlp_only_layers`` lists."""
    experts = Experts(
        *_expert_counts(settings),
        settings.integer("moe_intermediate_size", FFN_LIMIT),
        shared,
        shared_gate=shared > 0,
    )
    listed = settings.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise settings.wrong("mlp_only_layers", "a list of layers")
    every = settings.integer("decoder_sparse_step", LAYERS_LIMIT, default=1)
    return [
        Dense(settings.integer("intermediate_size", FFN_LIMIT)) if layer in listed or (layer + 1) % every else experts
        for layer in range(count)
    ]


def _deepseek_v3(settings: Settings, count: int) -> list[Layer]:
    mixer = LatentAttention(
        heads=settings.integer("num_attention_heads", HEADS_LIMIT),
        q_rank=_optional(settings, "q_lora_rank"),
        kv_rank=settings.integer("kv_lora_rank", RANK_LIMIT),
        nope_dim=settings.integer("qk_nope_head_dim", HEAD_DIM_LIMIT),
        rope_dim=settings.integer("qk_rope_head_dim", HEAD_DIM_LIMIT),
        value_dim=settings.integer("v_head_dim", HEAD_DIM_LIMIT),
    )
    dense = 0 if settings.get("first_k_dense_replace") == 0 else settings.integer("first_k_dense_replace", LAYERS_LIMIT)
    experts = _shared_experts(settings)
    dense_ffn = Dense(settings.integer("intermediate_size", FFN_LIMIT)) if dense else None
    return [Layer(mixer, dense_ffn if dense_ffn and layer < dense else experts) for layer in range(count)]


def _deepseek_v4(settings: Settings, count: int) -> list[Layer]:
    streams = settings.integer("hc_mult", STREAMS_LIMIT)
    hashed = _hash_layers(settings)
    return [
        Layer(_compressed(settings, kind), _shared_experts(settings, hashed=layer < hashed), streams)
        for layer, kind in enumerate(_compressions(settings, count))
    ]


def _compressions(settings: Settings, count: int) -> list[str]:
    """The kind of attention of every layer: newer configs name it, older ones have its compression rate."""
    ratios = settings.get("compress_ratios")
    if ratios is None:
        return _kinds(settings, count, [], tuple(_RATES))
    known = (
        isinstance(ratios, list)
        and len(ratios) >= count
        and all(isinstance(ratio, int) and ratio in _BY_RATIO for ratio in ratios)
    )
    if not known:
        raise settings.wrong("compress_ratios", f"a list of {count} layers, each {', '.join(map(str, _BY_RATIO))}")
    assert isinstance(ratios, list)
    return [_BY_RATIO[ratio] for ratio in ratios[:count]]  # further entries are for multi-token prediction layers


def _compressed(settings: Settings, kind: str) -> CompressedAttention:
    rates = settings.get("compress_rates")
    rate = _RATES.get(kind, 0)
    if isinstance(rates, dict) and kind in rates:
        rate = Settings(rates, f"{settings.source}: compress_rates").integer(kind, CONTEXT_LIMIT)
    indexed = kind == _SPARSE  # an indexer chooses which of the compressed positions are read
    return CompressedAttention(
        heads=settings.integer("num_attention_heads", HEADS_LIMIT),
        head_dim=settings.integer("head_dim", HEAD_DIM_LIMIT),
        q_rank=settings.integer("q_lora_rank", RANK_LIMIT),
        o_groups=settings.integer("o_groups", HEADS_LIMIT),
        o_rank=settings.integer("o_lora_rank", RANK_LIMIT),
        window=settings.integer("sliding_window", CONTEXT_LIMIT),
        rate=rate or None,
        top_k=settings.integer("index_topk", CONTEXT_LIMIT) if indexed else None,
        index_heads=settings.integer("index_n_heads", HEADS_LIMIT) if indexed else 0,
        index_dim=settings.integer("index_head_dim", HEAD_DIM_LIMIT) if indexed else 0,
    )


def _hash_layers(settings: Settings) -> int:
    """The number of first layers whose experts follow from a hash of the token instead of a router."""
    kinds = settings.get("mlp_layer_types")
    if isinstance(kinds, list):
        return kinds.count("hash_moe")
    return 0 if settings.get("num_hash_layers") == 0 else settings.integer("num_hash_layers", LAYERS_LIMIT, default=3)


def _shared_experts(settings: Settings, hashed: bool = False) -> Experts:
    """The experts of DeepSeek's configs: a shared expert has the same FFN size as a routed one."""
    ffn = settings.integer("moe_intermediate_size", FFN_LIMIT)
    return Experts(
        *_expert_counts(settings),
        ffn,
        ffn * (settings.integer("n_shared_experts", EXPERTS_LIMIT) if settings.get("n_shared_experts") else 0),
        hashed=hashed,
    )


def _expert_counts(settings: Settings) -> tuple[int, int]:
    """The number of experts, and of those that a token reads. Different configs have different keys for the first."""
    key = next((key for key in _EXPERT_KEYS if settings.get(key) is not None), _EXPERT_KEYS[0])
    count = settings.integer(key, EXPERTS_LIMIT)
    return count, settings.integer("num_experts_per_tok", count)


def _grouped(
    settings: Settings,
    window: int | None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
    gated: bool = False,
) -> GroupedAttention:
    heads = settings.integer("num_attention_heads", HEADS_LIMIT)
    kv_heads = settings.integer("num_key_value_heads", HEADS_LIMIT, default=heads)
    hidden = settings.integer("hidden_size", HIDDEN_LIMIT)
    head_dim = settings.integer("head_dim", HEAD_DIM_LIMIT, default=max(1, hidden // heads))
    return GroupedAttention(heads, kv_heads, head_dim, window, qkv_bias, o_bias, qk_norm, sinks, gated)


def _kinds(settings: Settings, count: int, default: list[str], known: tuple[str, ...]) -> list[str]:
    """The kind of attention of every layer."""
    kinds = settings.get("layer_types") or default
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in known for kind in kinds):
        raise settings.wrong("layer_types", f"a list of {count} layers, each {' or '.join(known)}")
    return kinds


def _optional(settings: Settings, key: str) -> int | None:
    return None if settings.get(key) is None else settings.integer(key, CONTEXT_LIMIT)


FAMILIES: dict[str, LayersOf] = {
    "llama": _dense(_no_windows),
    "laneformer_tp": _dense(lane_windows),
    "mistral": _dense(_same_windows),
    "qwen2": _dense(layer_windows, qkv_bias=True),
    "qwen3": _dense(layer_windows, qk_norm=True),
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "deepseek_v4": _deepseek_v4,
}
