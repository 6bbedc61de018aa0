"""GGUF files mean to us what they mean to llama.cpp: random models of every family, and of every type of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import GgufModel

from monolane.model.gguf_weights import open_gguf
from monolane.target import open_target

xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp has no wheel for this machine")

Kind = gguf.GGMLQuantizationType
LENGTHS = (1, 17, 130, 200, 333)  # of prompts: most are longer than a window of 128 tokens
LIKELIEST = 20
# Of the spread of logits: how far they may be apart, in the median of the prompts, because another rounding may choose
# another expert. With 16-bit and 32-bit weights there are roundings alone; beside low-bit weights llama.cpp rounds
# activations to 8 bits, too. A wrong order of rows, a wrong scale or a wrong frequency is as far off as logits spread.
EXACT, LOW_BIT = 0.06, 0.2

GPT_OSS = {"attention.sliding_window": 128, "expert_gating_func": 3}
# Where a block has its fp16 scales, if gguf reads the type but does not write it.
SCALES = {
    "Q2_K": slice(-4, None),
    "Q3_K": slice(-2, None),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(-2, None),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}


def usual(model: GgufModel) -> GgufModel:
    """With weights that keep the magnitude of activations; random blocks of bytes do not."""
    for number, (name, (data, kind)) in enumerate(model.tensors.items()):
        generator = np.random.default_rng(number)
        if data.ndim == 1 or name.endswith(".bias"):
            values = 0.3 * generator.standard_normal(data.shape) + ("norm" in name)
            model.tensors[name] = (values.astype(np.float32), kind)
        elif "ffn_gate_inp" not in name:
            shape = gguf.quant_shape_from_byte_shape(data.shape, kind) if data.dtype == np.uint8 else data.shape
            std = (4.0 if name == "token_embd.weight" else 1.0) / np.sqrt(shape[-1])
            try:
                normal = (std * generator.standard_normal(shape)).astype(np.float32)
                model.tensors[name] = (gguf.quants.quantize(normal, kind), kind)
            except NotImplementedError:
                model.tensors[name] = (random_codes(data.shape, kind, std, generator), kind)
    return model


def random_codes(
    shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, std: float, generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Blocks of a type that gguf only reads, whose fp16 scales give the weights this standard deviation."""
    blocks = generator.integers(0, 256, shape, np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    scales = generator.uniform(0.5, 1.5, blocks[:, SCALES[kind.name]].view(np.float16).shape)

    def scaled(by: float) -> NDArray[np.uint8]:
        blocks[:, SCALES[kind.name]] = (by * scales).astype(np.float16).view(np.uint8)
        return blocks

    return scaled(std / gguf.quants.dequantize(scaled(1.0), kind).std()).reshape(shape)


def with_tokenizer(model: GgufModel) -> GgufModel:
    """Without one llama.cpp does not read the file. Prompts are token ids."""
    model.metadata["vocab_size"] = model.vocab
    model.general = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [f"w{number}" for number in range(model.vocab)],
        "tokenizer.ggml.token_type": [1] * model.vocab,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return model


def of_llamacpp(path: Path, prompts: list[list[int]]) -> list[dict[int, float]]:
    """For each prompt the logprobs of the likeliest next tokens, without token 0, which would end the answer."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.verbosity, params.warmup = 1024, 1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)
    asked = {"max_tokens": 1, "temperature": 0, "n_probs": LIKELIEST, "cache_prompt": False, "logit_bias": [[0, -1000]]}
    found = []
    for prompt in prompts:
        said = server.handle_completions({"prompt": prompt, "ignore_eos": True} | asked)
        answer: dict[str, Any] = json.loads(said) if isinstance(said, str | bytes) else said
        (token,) = answer["choices"][0]["logprobs"]["content"]
        found.append({entry["id"]: entry["logprob"] for entry in token["top_logprobs"] if entry["id"]})
    return found


def require_the_same(model: GgufModel, folder: Path, tolerance: float) -> None:
    path = with_tokenizer(model).write(folder / "model.gguf")
    generator = np.random.default_rng(1)
    prompts = [generator.integers(1, model.vocab, length).tolist() for length in LENGTHS]
    expected = of_llamacpp(path, prompts)
    config, weights, _ = open_gguf(path)
    target = open_target(config, weights, device="interpreter", cache_format="f32", context=max(LENGTHS))
    apart = []
    for prompt, logprobs in zip(prompts, expected, strict=True):
        assert len(logprobs) >= LIKELIEST - 1
        logits = target.logits(prompt)[-1]
        difference = logits[list(logprobs)] - np.array(list(logprobs.values()))
        apart.append(np.abs(difference - np.median(difference)).max() / logits.std())
    assert np.median(apart) < tolerance, apart


@pytest.mark.parametrize(
    ("architecture", "experts", "settings"),
    [
        ("llama", 0, {}),
        ("llama", 0, LINEAR),
        ("llama", 4, {"feed_forward_length": 256}),
        ("qwen2", 0, {}),
        ("qwen2", 0, YARN),
        ("qwen3", 0, {}),
        ("qwen3", 0, YARN),
        ("qwen2moe", 4, {}),
        ("qwen3moe", 4, {}),
        ("qwen3moe", 4, YARN),
        ("gpt-oss", 4, GPT_OSS),
    ],
)
def test_every_family(tmp_path: Path, architecture: str, experts: int, settings: dict[str, Any]) -> None:
    model = GgufModel(architecture, experts=experts)
    model.metadata |= settings
    if architecture in ("gpt-oss", "qwen2moe"):  # llama.cpp reads none of these that is tied
        model.matrix("output.weight", model.vocab, model.hidden)
    require_the_same(usual(model), tmp_path, EXACT)


def test_frequencies_in_the_file(tmp_path: Path) -> None:
    model = usual(GgufModel("llama"))
    model.tensors["rope_freqs.weight"] = (np.linspace(1, 8, model.head_dim // 2, dtype=np.float32), Kind.F32)
    require_the_same(model, tmp_path, EXACT)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *SCALES])
def test_every_type_of_weights(tmp_path: Path, kind: str) -> None:
    require_the_same(usual(GgufModel("llama", Kind[kind])), tmp_path, EXACT if "F" in kind else LOW_BIT)


@pytest.mark.parametrize("kind", ["MXFP4", "Q4_K", "Q8_0"])
def test_experts_of_every_type(tmp_path: Path, kind: str) -> None:
    model = GgufModel("gpt-oss", Kind[kind], experts=4)
    model.metadata |= GPT_OSS
    model.matrix("output.weight", model.vocab, model.hidden)
    require_the_same(usual(model), tmp_path, LOW_BIT)
