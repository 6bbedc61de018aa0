"""Configs of every family, in old and new versions of the format, compared with transformers' reading of them."""

from __future__ import annotations

import json
import math
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_models import CLASSES, SIZES, change_config, save_huggingface

from monolane.errors import ModelFileError, MonolaneError, UnsupportedModelError
from monolane.model.config import ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.families.names import gguf_name, huggingface_name
from monolane.model.huggingface import read_folder_config
from thorough import THOROUGH

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
HUGE = 10**400  # more than any float


def read(folder: Path, family: str = "llama", **keys: Any) -> ModelConfig:
    """The config of a config.json with the usual sizes and these keys; ``...`` leaves a key out."""
    values = {"model_type": family} | SIZES | keys
    text = json.dumps({key: value for key, value in values.items() if value is not ...})
    (folder / "config.json").write_text(text)
    return read_folder_config(folder)


@pytest.mark.parametrize("family", CLASSES)
def test_config_saved_by_transformers(tmp_path: Path, family: str) -> None:
    original = CLASSES[family][0](**(SIZES | {"head_dim": 10}), rms_norm_eps=1e-5)
    original.save_pretrained(tmp_path)
    config = read_folder_config(tmp_path)
    assert config.family == family
    assert (config.hidden, config.ffn, config.layers, config.vocab, config.context) == (48, 80, 2, 101, 512)
    assert (config.heads, config.kv_heads, config.head_dim, config.norm_eps) == (6, 2, 10, 1e-5)
    assert (config.q_size, config.kv_size) == (60, 20)
    assert config.rope.theta == 10000.0
    assert config.rope.factors is None
    assert config.qkv_bias == (family == "qwen2")
    assert config.qk_norm == (family == "qwen3")
    assert not config.o_bias
    assert not config.mlp_bias
    assert not config.tied
    assert config.windows == ((4096, 4096) if family == "mistral" else (None, None))


def test_defaults_of_old_configs(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=..., tie_word_embeddings=True, rope_theta=5e5)
    assert config.kv_heads == config.heads == 6
    assert config.head_dim == 8
    assert config.norm_eps == 1e-6
    assert config.rope.theta == 5e5
    assert config.tied


def test_biases(tmp_path: Path) -> None:
    llama = read(tmp_path, attention_bias=True, mlp_bias=True)
    assert llama.qkv_bias
    assert llama.o_bias
    assert llama.mlp_bias
    qwen3 = read(tmp_path, "qwen3", attention_bias=True, head_dim=16)
    assert qwen3.qkv_bias
    assert qwen3.o_bias
    qwen2 = read(tmp_path, "qwen2")
    assert qwen2.qkv_bias
    assert not qwen2.o_bias


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize("window", [..., None, 16])
@pytest.mark.parametrize("kinds", [..., None, [FULL, FULL], [SLIDING, FULL], [SLIDING, SLIDING]])
def test_mistral_windows_as_in_transformers(tmp_path: Path, window: Any, kinds: Any) -> None:
    """With ``layer_types``, transformers makes a Ministral of it, where layers may differ."""
    keys = {"sliding_window": window, "layer_types": kinds}
    if window is None and isinstance(kinds, list) and SLIDING in kinds:
        with pytest.raises(ModelFileError, match="sliding_window"):
            read(tmp_path, "mistral", **keys)
        return
    ours = read(tmp_path, "mistral", **keys).windows
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    if getattr(theirs, "layer_types", None) is None:
        assert ours == (theirs.sliding_window,) * 2
    else:
        assert ours == tuple(theirs.sliding_window if kind == SLIDING else None for kind in theirs.layer_types)


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"sliding_window": None}, False),
        ({"sliding_window": 512}, False),  # the whole context
        ({"sliding_window": 16, "layer_types": [FULL, FULL]}, False),
        ({"layer_types": [FULL, FULL]}, False),
        ({"sliding_window": 16}, True),
        ({"sliding_window": 16, "layer_types": [FULL, SLIDING]}, True),
    ],
)
def test_windows_of_a_llama(tmp_path: Path, keys: dict[str, Any], refused: bool) -> None:
    """Llama's own code knows none, but transformers' cache does: with them, decoding differs from a whole prompt."""
    save_huggingface(tmp_path)
    change_config(tmp_path, **keys)
    judge = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.arange(30)[None]
    with torch.no_grad():
        whole = judge(tokens).logits[0, -1]
        last = judge(tokens[:, -1:], past_key_values=judge(tokens[:, :-1]).past_key_values).logits[0, -1]
    assert torch.allclose(whole, last, atol=1e-2) != refused
    if refused:
        with pytest.raises(UnsupportedModelError, match="sliding_window is 16"):
            read_folder_config(tmp_path)
    else:
        assert read_folder_config(tmp_path).windows == (None, None)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "keys",
    [
        {"use_sliding_window": False, "sliding_window": 16},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 9},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1},
        {"use_sliding_window": True, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ],
)
def test_qwen_windows_as_in_transformers(tmp_path: Path, family: str, keys: dict[str, Any]) -> None:
    keys = keys | {"num_hidden_layers": 4, "head_dim": 16}
    original = CLASSES[family][0](**(SIZES | keys))
    expected = tuple(original.sliding_window if kind == "sliding_attention" else None for kind in original.layer_types)
    assert read(tmp_path, family, **keys).windows == expected
    original.save_pretrained(tmp_path)
    assert read_folder_config(tmp_path).windows == expected


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8192},
        YARN | {"beta_fast": 16.0, "beta_slow": 2, "truncate": False},
        YARN | {"beta_fast": 0, "mscale": 0.7, "mscale_all_dim": 1.0},
        YARN | {"mscale": 0.7, "mscale_all_dim": 0, "original_max_position_embeddings": 16},
        YARN | {"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0},
        YARN | {"factor": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_rope_frequencies_as_in_transformers(tmp_path: Path, scaling: dict[str, Any], head_dim: int) -> None:
    sizes = SIZES | {"head_dim": head_dim, "max_position_embeddings": 131072}
    original = transformers.LlamaConfig(**sizes, rope_parameters=scaling | {"rope_theta": 500000.0})
    oracle = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(original)
    old_key = dict(scaling)
    old_key["type"] = old_key.pop("rope_type")
    configs = [
        read(tmp_path, **sizes, rope_parameters=scaling | {"rope_theta": 500000.0}),
        read(tmp_path, **sizes, rope_theta=500000.0, rope_scaling=scaling),
        read(tmp_path, **sizes, rope_theta=500000, rope_scaling=old_key),
    ]
    for config in configs:
        np.testing.assert_allclose(config.rope.inverse_frequencies(head_dim), oracle.inv_freq.numpy(), rtol=2e-6)
        assert config.rope.attention_factor == pytest.approx(oracle.attention_scaling)


OBJECTS: list[Any] = [
    ...,
    None,
    {},
    {"rope_type": "default", "rope_theta": 7e3},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4},
    LLAMA3 | {"original_max_position_embeddings": 64},
    {"type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5},
    {"rope_theta": 9e4},
    {"factor": 3.0},
    {"type": "linear", "rope_type": "default", "factor": 2.0},
    {"type": "yarn", "factor": 4.0, "rope_theta": 2e4},
]


@pytest.mark.parametrize("family", CLASSES)
def test_rope_of_every_mixture_of_keys_as_in_transformers(tmp_path: Path, family: str) -> None:
    """Both objects, the old keys beside them, and configs that somebody edited: some 480 of them. All families read
    them in the same way: each has a quarter of them, and all in a thorough run."""
    modeling = import_module(f"transformers.models.{family}.modeling_{family}")
    rotary = next(value for name, value in vars(modeling).items() if name.endswith("RotaryEmbedding"))
    for number, mixture in enumerate(product(OBJECTS, OBJECTS, [..., 5e5], [..., 128])):
        if (number + number // 4) % 4 != list(CLASSES).index(family) and not THOROUGH:
            continue
        scaling, parameters, theta, original = mixture
        keys = {"rope_scaling": scaling, "rope_parameters": parameters, "rope_theta": theta}
        keys |= {"original_max_position_embeddings": original, "head_dim": 16}
        ours = read(tmp_path, family, **keys).rope.inverse_frequencies(16)
        theirs = rotary(transformers.AutoConfig.from_pretrained(tmp_path)).inv_freq.numpy()
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, err_msg=str(keys))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"family": "gpt_neox"}, "gpt_neox"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        read(tmp_path, **keys)
    assert caught.value.hint


def test_unknown_family_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(tmp_path, "mamba")
    assert all(family.name in str(caught.value) for family in FAMILIES)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model_type": ...}, "model_type"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"max_position_embeddings": ...}, "max_position_embeddings"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 1 << 18}, "hidden_size"),
        ({"hidden_size": "48"}, "hidden_size"),
        ({"hidden_size": 48.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"vocab_size": 1 << 23}, "vocab_size"),
        ({"num_key_value_heads": 4}, "6 attention heads"),
        ({"head_dim": 7}, "head of 7"),
        ({"num_attention_heads": 60, "num_key_value_heads": 2}, "head_dim"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": 3.0}, "epsilon"),
        ({"rope_theta": math.inf}, "rope_theta"),
        ({"rope_theta": HUGE}, "rope_theta"),
        ({"rms_norm_eps": HUGE}, "rms_norm_eps"),
        ({"hidden_size": HUGE}, "hidden_size"),
        ({"partial_rotary_factor": HUGE}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "linear", "factor": HUGE}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-37}, "rope_theta": 1e-37}, "theta 1e-37"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": HUGE}}, "original_max_position_embeddings"),
        ({"original_max_position_embeddings": HUGE, "rope_scaling": LLAMA3}, "original_max_position_embeddings"),
        ({"sliding_window": HUGE}, "sliding_window"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}}, "original_max_position_embeddings"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"model_type": "qwen3"}, "head_dim"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 2}, "layer_types"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named) as caught:
        read(tmp_path, **keys)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"a": 1, "a": 2}', "\xff", "[" * 100_000, "1" * 5000])
def test_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_folder_config(tmp_path)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(MonolaneError, match=r"no config\.json"):
        read_folder_config(tmp_path)


def test_names_in_files() -> None:
    expected = {
        "embed": ("model.embed_tokens.weight", "token_embd.weight"),
        "final_norm": ("model.norm.weight", "output_norm.weight"),
        "head": ("lm_head.weight", "output.weight"),
        "layers.7.attn_norm": ("model.layers.7.input_layernorm.weight", "blk.7.attn_norm.weight"),
        "layers.7.q": ("model.layers.7.self_attn.q_proj.weight", "blk.7.attn_q.weight"),
        "layers.7.q.bias": ("model.layers.7.self_attn.q_proj.bias", "blk.7.attn_q.bias"),
        "layers.7.q_norm": ("model.layers.7.self_attn.q_norm.weight", "blk.7.attn_q_norm.weight"),
        "layers.7.k": ("model.layers.7.self_attn.k_proj.weight", "blk.7.attn_k.weight"),
        "layers.7.k_norm": ("model.layers.7.self_attn.k_norm.weight", "blk.7.attn_k_norm.weight"),
        "layers.7.v": ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight"),
        "layers.7.o": ("model.layers.7.self_attn.o_proj.weight", "blk.7.attn_output.weight"),
        "layers.7.ffn_norm": ("model.layers.7.post_attention_layernorm.weight", "blk.7.ffn_norm.weight"),
        "layers.7.gate": ("model.layers.7.mlp.gate_proj.weight", "blk.7.ffn_gate.weight"),
        "layers.7.up": ("model.layers.7.mlp.up_proj.weight", "blk.7.ffn_up.weight"),
        "layers.7.down": ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
        "layers.12.down.bias": ("model.layers.12.mlp.down_proj.bias", "blk.12.ffn_down.bias"),
    }
    assert {name: (huggingface_name(name), gguf_name(name)) for name in expected} == expected
