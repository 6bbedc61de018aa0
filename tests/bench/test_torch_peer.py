"""PyTorch as a peer computes the same models as we do, so that it is timed doing the same work."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from monolane.bench import shapes, torch_peer
from monolane.bench.torch_model import Decoder
from monolane.model.weights import Weights, from_bf16
from random_models import CASES, Case, random_model

CONTEXT = 24
JUDGED = ("llama-64-tied", "qwen2-96", "qwen3-128")  # the families of our shapes


def matrix(weights: Weights, *names: str) -> torch.Tensor:
    return torch.from_numpy(
        np.concatenate([from_bf16(weights.rows(name, 0, weights.shape(name)[0])) for name in names])
    )


def vector(weights: Weights, *names: str) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([weights.vector(name) for name in names]))


def state_of(decoder: Decoder, weights: Weights, layers: int, tied: bool) -> dict[str, torch.Tensor]:
    """Our weights under the peer's names: q, k, v in one matrix, gate and up in another."""
    parts = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up"), "o": ("o",), "down": ("down",)}
    state = {"embed.weight": matrix(weights, "embed"), "final_norm.weight": vector(weights, "final_norm")}
    state["head.weight"] = state["embed.weight"] if tied else matrix(weights, "head")
    for layer in range(layers):
        place = f"layers.{layer}."
        for name, from_names in parts.items():
            state[f"{place}{name}.weight"] = matrix(weights, *(place + part for part in from_names))
            if f"{place}{name}.bias" in decoder.state_dict():
                state[f"{place}{name}.bias"] = vector(weights, *(f"{place}{part}.bias" for part in from_names))
        for norm in ("attn_norm", "ffn_norm", "q_norm", "k_norm"):
            if f"{place}{norm}.weight" in decoder.state_dict():
                state[f"{place}{norm}.weight"] = vector(weights, place + norm)
    return state


@pytest.mark.parametrize("case", [case for case in CASES if case.name in JUDGED], ids=lambda case: case.name)
def test_the_peer_finds_the_same_tokens_as_transformers(case: Case) -> None:
    model = random_model(case)
    decoder = Decoder(model.config, CONTEXT).requires_grad_(False)
    state = state_of(decoder, model.weights, case.layers, model.config.tied)
    missing, unexpected = decoder.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith(("keys", "values")) or name in ("cosines", "sines", "positions") for name in missing)
    found = [
        int(decoder(torch.tensor([[token]]), torch.tensor([position])))
        for position, token in enumerate(model.tokens[:CONTEXT])
    ]
    assert found == model.logits[:CONTEXT].argmax(1).tolist()


def test_without_a_gpu_there_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(torch_peer.PeerMissingError, match="sees no GPU"):
        torch_peer.TorchPeer(shapes.SHAPES["smollm2-135m"], 128, 512)


def test_without_torch_there_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(torch_peer.PeerMissingError, match="not installed"):
        torch_peer.TorchPeer(shapes.SHAPES["smollm2-135m"], 128, 512)
