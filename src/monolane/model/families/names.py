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
    "sinks": ("self_attn.sinks", "attn_sinks"),
    "router": ("mlp.gate", "ffn_gate_inp"),
    "shared_router": ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
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
    _, layer, *parts = name.split(".")
    ending = parts.pop() if parts[-1] == "bias" else "weight"
    return f"{layers}.{layer}.{_in_layer(parts, column)}.{ending}"


def _in_layer(parts: list[str], column: int) -> str:
    """``parts``: ["q"]; of experts ["experts", "gate"], or ["experts", "17", "gate"] for one of them; ["shared",
    "gate"]."""
    names = _IN_LAYER[parts[-1]]
    if len(parts) == 1:
        return names[column]
    if column == 1:
        return names[1] + ("_exps" if parts[0] == "experts" else "_shexp")
    kind = "experts" if parts[0] == "experts" else "shared_expert"
    return ".".join(["mlp", kind, *parts[1:-1], names[0].removeprefix("mlp.")])
