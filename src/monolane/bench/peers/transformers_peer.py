"""Hugging Face transformers as a peer: its model class and its ``generate``, with our weights in bf16."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.model.config import ModelConfig
from monolane.model.families import FAMILIES
from monolane.model.families.names import huggingface_name
from monolane.model.weights import expected_shapes


class TransformersPeer:
    """The model class of transformers with its default settings."""

    name = "transformers"

    def __init__(self, wanted: Wanted) -> None:
        for package in ("torch", "transformers"):
            if find_spec(package) is None:
                raise PeerMissingError(f"the {package} package is not installed")
        import torch
        import transformers

        if wanted.kind == "cuda" and not torch.cuda.is_available():
            raise PeerMissingError("PyTorch sees no GPU")
        self._device = wanted.kind if wanted.kind == "cuda" else "cpu"
        self.what = f"transformers {transformers.__version__}, torch {torch.__version__}, generate()"
        self._model = _model(wanted.config, self._device)
        _fill(self._model, wanted)

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        import torch

        prompt_ids = torch.tensor([list(prompt)], device=self._device)
        with torch.no_grad():
            made = self._model.generate(
                prompt_ids,
                attention_mask=torch.ones_like(prompt_ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        if made.shape[1] != len(prompt) + tokens:
            raise RuntimeError(f"transformers made {made.shape[1] - len(prompt)} tokens, not {tokens}")
        made.cpu()  # waits until the GPU has computed the last token

    def close(self) -> None:
        import torch

        del self._model
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()


def settings_of(config: ModelConfig) -> tuple[str, Any]:
    """The name of the model's class in transformers, and its config object."""
    import transformers

    if config.experts:
        raise PeerMissingError("it is not measured with experts yet")
    windows = {window for window in config.windows if window}
    if config.rope.factors is not None or len(windows) > 1 or (windows and config.family == "llama"):
        raise PeerMissingError("its model of this family has no such rope scaling or windows")
    name = next(family.architecture for family in FAMILIES if family.name == config.family)
    if name is None:
        raise PeerMissingError(f"it has no models of the family {config.family}")
    kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
    settings = getattr(transformers, f"{name.removesuffix('ForCausalLM')}Config")(
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.ffn,
        vocab_size=config.vocab,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        tie_word_embeddings=config.tied,
        bos_token_id=None,
        eos_token_id=None,
        **({"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias} if config.family == "llama" else {}),
        **({"use_sliding_window": True, "sliding_window": windows.pop(), "layer_types": kinds} if windows else {}),
    )
    return name, settings


def _model(config: ModelConfig, device: str) -> Any:
    """The model in bf16, not yet with our weights."""
    import torch
    import transformers

    name, settings = settings_of(config)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return getattr(transformers, name)(settings).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(default)


def _fill(model: Any, wanted: Wanted) -> None:
    """Copy our weights into the model's parameters."""
    import torch

    into = dict(model.named_parameters())
    for name, shape in expected_shapes(wanted.config):
        if len(shape) == 2:
            bits = np.array(wanted.weights.rows(name, 0, shape[0]))
            values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        else:
            values = torch.from_numpy(np.array(wanted.weights.vector(name)))
        into[huggingface_name(name)].copy_(values)
