"""Others who run the same weights, measured in the same rounds by the same clock; each only where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monolane.bench import timing
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights

Say = Callable[[str], None]


class PeerMissingError(Exception):
    """Why there is nothing to compare with: one line for people."""


class Peer(Protocol):
    """A loaded model. It answers greedily, with as many tokens as it is asked for, and from an empty cache."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """Versions and settings, for the record."""

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        """Answer, and return when the last token is there. Raises where there were fewer."""

    def close(self) -> None:
        """Give its memory back."""


@dataclass(frozen=True)
class Wanted:
    """What a peer is to run."""

    config: ModelConfig
    weights: Weights
    path: Path | None  # of the model's file or folder; None where the weights are made up
    kind: str  # of our target: cuda or cpu; the peer runs on the same device
    threads: int  # of a CPU
    context: int  # tokens of prompt and answer together


def _torch_compile(wanted: Wanted) -> Peer:
    from monolane.bench.torch_peer import TorchPeer

    return TorchPeer(wanted)


def _transformers(wanted: Wanted) -> Peer:
    from monolane.bench.transformers_peer import TransformersPeer

    return TransformersPeer(wanted)


def _llama_cpp(wanted: Wanted) -> Peer:
    from monolane.bench.llamacpp import LlamaCpp

    return LlamaCpp(wanted, widened=False)


def _llama_cpp_bf16(wanted: Wanted) -> Peer:
    from monolane.bench.llamacpp import LlamaCpp

    return LlamaCpp(wanted, widened=True)


def _vllm(wanted: Wanted) -> Peer:
    from monolane.bench.served_peer import VLLM, ServedPeer

    return ServedPeer(VLLM, wanted)


def _sglang(wanted: Wanted) -> Peer:
    from monolane.bench.served_peer import SGLANG, ServedPeer

    return ServedPeer(SGLANG, wanted)


# Name on the command line -> those it stands for, by the name that results carry.
MAKERS: dict[str, dict[str, Callable[[Wanted], Peer]]] = {
    "torch.compile": {"torch.compile": _torch_compile},
    "transformers": {"transformers": _transformers},
    "llama.cpp": {"llama.cpp, same file": _llama_cpp, "llama.cpp, bf16": _llama_cpp_bf16},
    "vllm": {"vllm": _vllm},
    "sglang": {"sglang": _sglang},
}


def parse(text: str) -> tuple[str, ...]:
    """``all``, ``none``, or names with commas between them."""
    if text.strip() in ("all", "none"):
        return tuple(MAKERS) if text.strip() == "all" else ()
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in MAKERS:
            raise UsageError(f"There is no peer {name!r}.", f"Choose all, none, or some of: {', '.join(MAKERS)}.")
    return names


@contextmanager
def opened(names: Sequence[str], wanted: Wanted, say: Say) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """The peers that are there, warm, and why the others are not. Whatever goes wrong with one must not take our own
    result along."""
    found: list[Peer] = []
    skipped: dict[str, str] = {}
    try:
        for group in names:
            for name, make in MAKERS[group].items():
                say(f"{name}: starting")
                try:
                    found.append(_warm(make(wanted)))
                except Exception as error:
                    skipped[name] = reason(error)
                    say(f"{name} is skipped: {skipped[name]}")
        yield found, skipped
    finally:
        for peer in found:
            peer.close()


def reason(error: Exception) -> str:
    """One line for people."""
    text = str(error) if isinstance(error, PeerMissingError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:200]


@dataclass(frozen=True)
class Times:
    """Of one peer in one round, by the host's clock."""

    us_per_token: float  # by the same difference as ours
    first_token_ms: float  # to the end of a request for one token, as ours


def measure(peer: Peer, prompt: Sequence[int], tokens: int) -> Times:
    _, one = timing.timed(lambda: peer.ask(prompt, 1))
    _, many = timing.timed(lambda: peer.ask(prompt, tokens))
    return Times(timing.difference_us(one, many, tokens), one * 1e3)


def _warm(peer: Peer) -> Peer:
    """The first answers compile, record graphs and raise clocks."""
    try:
        for tokens in (4, 4):
            peer.ask([1, 2, 3, 4], tokens)
    except BaseException:
        peer.close()
        raise
    return peer
