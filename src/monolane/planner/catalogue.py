"""The models that the planner knows by name: the keys of their config.json that sizes follow from, and what of it is
uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_FP8_MIXED = {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}
_INT4_EXPERTS = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
        "ignore": ["lm_head", "self_attn", "shared_experts", "mlp.(gate|up|down)_proj"],
    }
}


@dataclass(frozen=True)
class Entry:
    """One model."""

    name: str
    title: str
    config: Mapping[str, object]
    assumed: Mapping[str, str] = field(default_factory=dict)  # unconfirmed keys -> where their values come from


def _sizes(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int, context: int
) -> dict[str, object]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": context,
    }


def _tied(config: dict[str, object]) -> dict[str, object]:
    return {**config, "tie_word_embeddings": True}


def _experts(count: int, chosen: int, ffn: int) -> dict[str, object]:
    return {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": ffn}


def _shared_experts(count: int, chosen: int, ffn: int) -> dict[str, object]:
    """Experts, and one shared expert that every token reads."""
    return {
        "n_routed_experts": count,
        "n_shared_experts": 1,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": ffn,
    }


def _deepseek_v4(first_ratio: int, layers: int, q_rank: int, o_groups: int, top_k: int) -> dict[str, object]:
    ratios = [first_ratio, first_ratio, *([4, 128] * layers)][:layers]
    return {
        "compress_ratios": ratios,
        "q_lora_rank": q_rank,
        "o_groups": o_groups,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": top_k,
        "hc_mult": 4,
        "num_hash_layers": 3,
        **_FP8_MIXED,
    }


def _gpt_oss(layers: int, experts: int) -> dict[str, object]:
    return {
        **_sizes("gpt_oss", 2880, layers, 64, 8, 64, 2880, 201088, 131072),
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }


_LINEAR = {
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 512,
}
_LATENT = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
}
_LANEFORMER = {
    "num_lanes": 8,
    "broadcast_delay": 2,
    "sliding_window": 512,
    "sliding_window_n_layers": 10,
}

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2-135m",
            "SmolLM2 135M",
            _tied(_sizes("llama", 576, 30, 9, 3, 64, 1536, 49152, 8192)),
        ),
        Entry(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder 0.5B",
            _tied(_sizes("qwen2", 896, 24, 14, 2, 64, 4864, 151936, 32768)),
        ),
        Entry(
            "llama-3.2-1b",
            "Llama 3.2 1B",
            _tied(_sizes("llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072)),
        ),
        Entry(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder 1.5B",
            _tied(_sizes("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, 32768)),
        ),
        Entry(
            "qwen3-1.7b",
            "Qwen3 1.7B",
            _tied(_sizes("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 40960)),
        ),
        Entry(
            "laneformer-2b",
            "Laneformer 2B",
            {**_sizes("laneformer_tp", 3072, 15, 32, 16, 96, 12288, 32000, 4096), **_LANEFORMER},
        ),
        Entry("llama-2-7b", "Llama 2 7B", _sizes("llama", 4096, 32, 32, 32, 128, 11008, 32000, 4096)),
        Entry("llama-3.1-8b", "Llama 3.1 8B", _sizes("llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072)),
        Entry("qwen3-14b", "Qwen3 14B", _sizes("qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 40960)),
        Entry(
            "qwen3-30b-a3b",
            "Qwen3 30B-A3B",
            {**_sizes("qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, 40960), **_experts(128, 8, 768)},
        ),
        Entry(
            "qwen3-coder-next",
            "Qwen3-Coder-Next",
            {**_sizes("qwen3_next", 2048, 48, 16, 2, 256, 5632, 151936, 262144), **_LINEAR, **_experts(512, 10, 512)},
            {"linear_*": "as in Qwen3-Next, which it was trained from"},
        ),
        Entry("gpt-oss-20b", "gpt-oss-20b", _gpt_oss(24, 32)),
        Entry("gpt-oss-120b", "gpt-oss-120b", _gpt_oss(36, 128)),
        Entry(
            "deepseek-v4-flash",
            "DeepSeek-V4-Flash",
            {
                **_sizes("deepseek_v4", 4096, 43, 64, 1, 512, 2048, 129280, 1048576),
                **_deepseek_v4(0, 43, 1024, 8, 512),
                **_shared_experts(256, 6, 2048),
            },
            {"compress_ratios": "the first two layers see their window only; sources differ"},
        ),
        Entry(
            "kimi-k2.6",
            "Kimi-K2.6",
            {
                **_sizes("kimi_k2", 7168, 61, 64, 64, 128, 18432, 163840, 262144),
                **_LATENT,
                **_shared_experts(384, 8, 2048),
                **_INT4_EXPERTS,
            },
            {"*_lora_rank, *_head_dim": "as in Kimi-K2, whose text model it has"},
        ),
        Entry(
            "deepseek-v4-pro",
            "DeepSeek-V4-Pro",
            {
                **_sizes("deepseek_v4", 7168, 61, 128, 1, 512, 3072, 129280, 1048576),
                **_deepseek_v4(128, 61, 1536, 16, 1024),
                **_shared_experts(384, 6, 3072),
            },
            {"index_n_heads, index_head_dim": "as in DeepSeek-V4-Flash"},
        ),
    )
}
