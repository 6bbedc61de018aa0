"""Small random models on disk, for the tests of the readers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 512,
}

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def save_huggingface(
    folder: Path, family: str = "llama", dtype: torch.dtype = torch.bfloat16, shard: str = "1GB", **overrides: Any
) -> dict[str, torch.Tensor]:
    """Save a random model as transformers does; returns its tensors."""
    make_config, make_model = CLASSES[family]
    torch.manual_seed(7)
    model = make_model(make_config(**(SIZES | overrides))).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # norms are all ones and biases all zeros otherwise
            parameter.copy_(torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=shard)
    return dict(model.state_dict())


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of a saved config.json; a key set to ``...`` is removed."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def bf16_bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    """A tensor rounded to bf16 by torch, as bits."""
    return tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of a quantised matrix: quantised noise where gguf can do that, else random bytes with finite scales."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, columns)).astype(np.float32)
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = generator.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
        # The fp16 scales: the first four bytes of Q4_K and Q5_K, the last two of Q6_K.
        scales = slice(size - 2, size) if kind.name == "Q6_K" else slice(0, 4)
        width = len(range(size)[scales]) // 2
        raw[:, scales] = generator.uniform(0.001, 0.1, (len(raw), width)).astype(np.float16).view(np.uint8)
        return raw.reshape(rows, -1)


class GgufModel:
    """A random model as GGUF. Change ``metadata`` and ``tensors`` before ``write``; None removes an entry."""

    def __init__(
        self,
        architecture: str = "llama",
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        experts: int = 0,
    ) -> None:
        self.architecture = architecture
        self.experts, self.expert_ffn = experts, 256
        self.hidden, self.ffn, self.vocab, self.heads, self.kv_heads, self.head_dim = 256, 512, 67, 4, 2, 64
        self.layers = 2
        self.kind = kind
        self.metadata: dict[str, Any] = {
            "embedding_length": self.hidden,
            "block_count": self.layers,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "context_length": 1024,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 50000.0,
        }
        if experts:
            self.metadata |= {
                "expert_count": experts,
                "expert_used_count": 2,
                "expert_feed_forward_length": self.expert_ffn,
            }
        if architecture == "qwen2moe":
            self.metadata["expert_shared_feed_forward_length"] = 512
        if architecture in ("qwen3moe", "gpt-oss"):
            self.metadata |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        self.general: dict[str, Any] = {}
        self.tensors: dict[str, tuple[NDArray[Any], gguf.GGMLQuantizationType]] = {}
        self._make_tensors()

    def _make_tensors(self) -> None:
        self.matrix("token_embd.weight", self.vocab, self.hidden)
        self.vector("output_norm.weight", self.hidden)
        kv = self.kv_heads * self.head_dim
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            for name in ("attn_norm", "ffn_norm"):
                self.vector(f"{prefix}{name}.weight", self.hidden)
            for name, rows in (("attn_q", self.hidden), ("attn_k", kv), ("attn_v", kv)):
                self.matrix(f"{prefix}{name}.weight", rows, self.hidden)
                if self.architecture in ("qwen2", "qwen2moe", "gpt-oss"):
                    self.vector(f"{prefix}{name}.bias", rows)
            if self.architecture in ("qwen3", "qwen3moe"):
                self.vector(f"{prefix}attn_q_norm.weight", self.head_dim)
                self.vector(f"{prefix}attn_k_norm.weight", self.head_dim)
            self.matrix(f"{prefix}attn_output.weight", self.hidden, self.hidden)
            if self.experts:
                self._make_experts(prefix)
                continue
            self.matrix(f"{prefix}ffn_gate.weight", self.ffn, self.hidden)
            self.matrix(f"{prefix}ffn_up.weight", self.ffn, self.hidden)
            self.matrix(f"{prefix}ffn_down.weight", self.hidden, self.ffn)

    def _make_experts(self, prefix: str) -> None:
        count, ffn, is_biased = self.experts, self.expert_ffn, self.architecture == "gpt-oss"
        router = np.random.default_rng(len(self.tensors)).integers(-99, 99, (count, self.hidden)).astype(np.float32)
        self.tensors[f"{prefix}ffn_gate_inp.weight"] = (router / 64, gguf.GGMLQuantizationType.F32)
        for part, rows, columns in (
            ("gate", ffn, self.hidden),
            ("up", ffn, self.hidden),
            ("down", self.hidden, ffn),
        ):
            self.matrix(f"{prefix}ffn_{part}_exps.weight", count * rows, columns)
            blocks, kind = self.tensors[f"{prefix}ffn_{part}_exps.weight"]
            self.tensors[f"{prefix}ffn_{part}_exps.weight"] = (blocks.reshape(count, rows, -1), kind)
            if is_biased:
                self.vector(f"{prefix}ffn_{part}_exps.bias", count * rows)
                values, kind = self.tensors[f"{prefix}ffn_{part}_exps.bias"]
                self.tensors[f"{prefix}ffn_{part}_exps.bias"] = (values.reshape(count, rows), kind)
        if is_biased:
            self.vector(f"{prefix}ffn_gate_inp.bias", count)
            self.vector(f"{prefix}attn_sinks.weight", self.heads)
            self.vector(f"{prefix}attn_output.bias", self.hidden)
            self.tensors[f"{prefix}post_attention_norm.weight"] = self.tensors.pop(f"{prefix}ffn_norm.weight")
        if self.architecture == "qwen2moe":
            self.vector(f"{prefix}ffn_gate_inp_shexp.weight", self.hidden)
            for part, rows, columns in (("gate", 512, 256), ("up", 512, 256), ("down", 256, 512)):
                self.matrix(f"{prefix}ffn_{part}_shexp.weight", rows, columns)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.tensors[name] = (random_blocks(self.kind, rows, columns, seed=len(self.tensors)), self.kind)

    def vector(self, name: str, size: int) -> None:
        values = np.random.default_rng(len(self.tensors)).standard_normal(size).astype(np.float32)
        self.tensors[name] = (values, gguf.GGMLQuantizationType.F32)

    def values(self, name: str) -> NDArray[np.float32]:
        """A tensor as the gguf package widens it, in the order of the file."""
        return np.asarray(gguf.quants.dequantize(*self.tensors[name]))

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.general.items():
            _add(writer, key, value)
        for key, value in self.metadata.items():
            if value is not None:
                _add(writer, f"{self.architecture}.{key}", value)
        for name, (data, kind) in self.tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def save_folder(folder: Path, words: int = 100, **config: Any) -> Path:
    """A Hugging Face folder with a tokenizer of so many words, the vocabulary of the model being 101."""
    save_huggingface(folder, **config)
    vocabulary = {f"w{index}": index for index in range(words)}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "w2"}))
    return folder


def gguf_with_tokenizer(extra: list[str]) -> GgufModel:
    """A GGUF model with a byte-level vocabulary: letters, then the ``extra`` control tokens."""
    letters = list(string.ascii_letters)
    model = GgufModel()
    model.general = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": letters + extra,
        "tokenizer.ggml.token_type": [1] * len(letters) + [3] * len(extra),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 51,
        "tokenizer.chat_template": TEMPLATE,
    }
    model.general["tokenizer.ggml.tokens"][2] = "ab"
    return model


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        add = writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64 if value < 0 else writer.add_uint64
        add(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)
