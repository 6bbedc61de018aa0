"""Translates canonical names of tensors (see weights.py) to their names in Hugging Face and GGUF files."""

from __future__ import annotations

# canonical: (Hugging Face, GGUF)
_OUTSIDE = {
    "embed": ("model.embed_tokens", "token_embd"),
    "final_norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}
_IN_LAYER = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}


def huggingface_name(name: str) -> str:
    """``layers.3.q.bias`` -> ``model.layers.3.self_attn.q_proj.bias``"""
    return _translate(name, 0, "model.layers")


def gguf_name(name: str) -> str:
    """``layers.3.q.bias`` -> ``blk.3.attn_q.bias``"""
    return _translate(name, 1, "blk")


def _translate(name: str, column: int, layers: str) -> str:
    if name in _OUTSIDE:
        return f"{_OUTSIDE[name][column]}.weight"
    _, layer, part, *bias = name.split(".")
    return f"{layers}.{layer}.{_IN_LAYER[part][column]}.{bias[0] if bias else 'weight'}"
