"""Peers: each runs the same model as Monolane, and one that is missing is skipped with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.bench.peers import registry, torch_peer
from monolane.bench.peers.peer import Peer, PeerMissingError, Wanted
from monolane.bench.peers.served_peer import SGLANG, VLLM, ServedPeer
from monolane.bench.peers.torch_model import Decoder, fill
from monolane.bench.peers.transformers_peer import TransformersPeer
from random_models import CASES, Case, random_model

CONTEXT = 24
JUDGED = ("llama-64-tied", "llama-96-biases", "mistral-128-window", "qwen2-96", "qwen3-128")


def wanted(kind: str = "cpu", path: Path | None = None, windows: bool = False) -> Wanted:
    shape = SHAPES["llama-3.2-1b" if windows else "qwen2.5-coder-1.5b"]
    sizes = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "vocab": 100, "layers": 2}
    config = replace(shape, windows=(4 if windows else None,) * 2, **sizes)
    return Wanted(config, MadeUpWeights(config), path, kind, 1, 64)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in JUDGED], ids=lambda case: case.name)
def test_the_model_that_is_compiled_finds_the_same_tokens_as_transformers(case: Case) -> None:
    model = random_model(case)
    decoder = Decoder(model.config, CONTEXT).requires_grad_(False)
    fill(decoder, model.config, model.weights)
    step = torch.compile(decoder, fullgraph=True, dynamic=False, backend="eager")  # one graph, or an error
    found = [
        int(step(torch.tensor([[token]]), torch.tensor([position])))
        for position, token in enumerate(model.tokens[:CONTEXT])
    ]
    assert found == model.logits[:CONTEXT].argmax(1).tolist()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in JUDGED[1:2] + JUDGED[3:]], ids=lambda c: c.name
)
def test_transformers_gets_our_weights(case: Case) -> None:
    model = random_model(case)
    peer = TransformersPeer(Wanted(model.config, model.weights, None, "cpu", 1, 64))
    peer.ask(model.tokens[:5], 3)
    with torch.no_grad():
        found = peer._model.float()(torch.tensor([model.tokens[:CONTEXT]])).logits[0].numpy()
    assert abs(found - model.logits[:CONTEXT]).max() < 0.2  # norms and biases are rounded to bf16
    peer.close()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PeerMissingError, match="sees no GPU"):
        torch_peer.TorchPeer(wanted())
    with pytest.raises(PeerMissingError, match="no such rope scaling or windows"):
        TransformersPeer(wanted(windows=True))
    for engine in (VLLM, SGLANG):
        with pytest.raises(PeerMissingError, match=f"the {engine.name} package is not installed"):
            ServedPeer(engine, wanted("cuda"))
    installed = replace(VLLM, name="numpy")
    for what, why in ((wanted(), "on a GPU only"), (wanted("cuda", tmp_path / "m.gguf"), "folder of safetensors"),
                      (wanted("cuda", windows=True), "cannot say what its attention windows")):  # fmt: skip
        with pytest.raises(PeerMissingError, match=why):
            ServedPeer(installed, what)
    monkeypatch.setattr(torch_peer, "find_spec", lambda _: None)
    with pytest.raises(PeerMissingError, match="not installed"):
        torch_peer.TorchPeer(wanted())


def test_a_server_that_does_not_start_is_a_reason_with_its_last_words() -> None:
    words = replace(VLLM, name="numpy", module="json.tool")  # it does not know such options
    with pytest.raises(PeerMissingError, match=r"did not start: .*json\.tool: error"):
        ServedPeer(words, wanted("cuda"))


class Answering:
    name = what = "answering"

    def __init__(self, _: Wanted) -> None:
        self.asked: list[int] = []
        self.closed = False

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        self.asked.append(tokens)

    def close(self) -> None:
        self.closed = True


class Failing(Answering):
    name = what = "failing"

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        raise ValueError("no such option\n at a place nobody should read of")


def missing(_: Wanted) -> Peer:
    raise PeerMissingError("the package is not installed")


def test_whatever_goes_wrong_with_one_peer_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    makers = {"a": {"answering": Answering}, "b": {"failing": Failing}, "c": {"missing": missing}}
    monkeypatch.setattr(registry, "MAKERS", makers)
    said: list[str] = []
    with registry.opened(("a", "b", "c"), wanted(), said.append) as (found, skipped):
        assert [peer.name for peer in found] == ["answering"]
        assert found[0].asked  # type: ignore[attr-defined]  # it is warm
        assert skipped == {"failing": "ValueError: no such option", "missing": "the package is not installed"}
    assert found[0].closed  # type: ignore[attr-defined]
    assert "missing is skipped: the package is not installed" in said
