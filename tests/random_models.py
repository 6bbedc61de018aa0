"""Small random models of every family in awkward shapes, made by transformers, with its logits for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.huggingface import open_folder
from monolane.model.weights import Weights

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
ALTERNATING = {
    "sliding_window": 17,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@dataclass(frozen=True)
class Case:
    """A family and a shape. ``extra`` goes to transformers' config as it is."""

    name: str
    family: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    ffn: int
    tied: bool
    extra: dict[str, Any] = field(default_factory=dict, hash=False)


_WRITTEN = (
    Case("llama-64-tied", "Llama", 324, 9, 3, 64, 3, 777, 333, True, {"rope_parameters": LLAMA3_ROPE}),
    Case("llama-80-one-kv-head", "Llama", 200, 5, 1, 80, 1, 1001, 450, False, {"rope_parameters": YARN}),
    Case("llama-96-biases", "Llama", 288, 9, 9, 96, 3, 515, 260, False, {"attention_bias": True, "mlp_bias": True}),
    Case("llama-20", "Llama", 60, 3, 3, 20, 1, 97, 100, True),
    Case("mistral-128-window", "Mistral", 264, 4, 2, 128, 3, 643, 301, False, {"sliding_window": 19}),
    Case("mistral-80-long-window", "Mistral", 240, 8, 4, 80, 1, 333, 200, False, {"sliding_window": 150}),
    Case("mistral-64-alternating", "Mistral", 192, 4, 2, 64, 3, 401, 230, False, ALTERNATING),
    Case("qwen2-64", "Qwen2", 320, 5, 5, 64, 3, 1001, 417, True),
    Case("qwen2-96", "Qwen2", 576, 6, 2, 96, 1, 391, 555, False),
    Case("qwen3-128", "Qwen3", 200, 8, 8, 128, 1, 601, 330, True),
    Case("qwen3-96-seven-kv-heads", "Qwen3", 196, 14, 7, 96, 3, 809, 350, False),
)
# Mixtures of experts: numbers of experts and sizes that divide by nothing, 1 to 8 of them chosen; dense layers between
# them; windows and sinks; a limit that activations reach.
MIXTURES = (
    Case(
        *("qwen3-moe", "Qwen3Moe", 100, 6, 2, 32, 3, 211, 70, False),
        {
            "num_experts": 13,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 53,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    Case(
        *("mixtral", "Mixtral", 72, 3, 1, 24, 2, 131, 75, True),
        {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 19},
    ),
    Case(
        *("qwen2-moe-shared", "Qwen2Moe", 96, 6, 2, 16, 4, 211, 70, False),
        {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "shared_expert_intermediate_size": 45,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 21,
            "max_window_layers": 2,
        },
    ),
    Case(
        *("gpt-oss", "GptOss", 96, 6, 2, 32, 3, 211, 70, False),
        {"num_local_experts": 9, "num_experts_per_tok": 4, "sliding_window": 19, "swiglu_limit": 0.4},
    ),
)
# A family that nobody has written a case for is tested all the same.
CASES = _WRITTEN + tuple(
    Case(f"{family.name}-plain", name, 200, 6, 2, 64, 2, 501, 260, False)
    for family in FAMILIES
    if family.architecture is not None
    and (name := family.architecture.removesuffix("ForCausalLM")) not in {case.family for case in _WRITTEN + MIXTURES}
)

# Small, with two layers. Of its residual stream three workers own fewer rows in half tiles.
HALVED = replace(CASES[3], name="llama-halved", heads=4, kv_heads=2, layers=2, ffn=1490)


@dataclass(frozen=True)
class RandomModel:
    folder: Path
    config: ModelConfig
    weights: Weights
    tokens: list[int]
    logits: NDArray[np.float32]  # of transformers in fp32, after each of the tokens


@cache
def random_model(case: Case, length: int = 200) -> RandomModel:
    """Saved by transformers in bf16, opened by us from the same files; biases and norms are random too."""
    torch.manual_seed(len(case.name) * case.hidden)
    config = getattr(transformers, f"{case.family}Config")(
        hidden_size=case.hidden,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        num_hidden_layers=case.layers,
        vocab_size=case.vocab,
        intermediate_size=case.ffn,
        tie_word_embeddings=case.tied,
        max_position_embeddings=512,
        initializer_range=0.08,
        **({} if case.family == "Qwen2" else {"head_dim": case.head_dim}),
        **case.extra,
    )
    model = getattr(transformers, f"{case.family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.3)
            elif name.endswith(("mlp.gate.weight", "router.weight")):
                parameter.normal_(0, 0.3)  # routers that know what they want: no ties within rounding
    folder = Path(mkdtemp(prefix=case.name))
    model.to(torch.bfloat16).save_pretrained(folder)
    # Experts one after the other: other implementations want sizes that are multiples of 8.
    judge = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    tokens = torch.randint(0, case.vocab, (length,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = judge(tokens[None]).logits[0].numpy()
    ours, weights = open_folder(folder)
    return RandomModel(folder, ours, weights, tokens.tolist(), logits)


def rounded_logits(model: RandomModel) -> NDArray[np.float32]:
    """What transformers says after each of the tokens when it computes in bf16."""
    rounded = transformers.AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        result: NDArray[np.float32] = rounded(torch.tensor([model.tokens])).logits[0].float().numpy()
    return result
