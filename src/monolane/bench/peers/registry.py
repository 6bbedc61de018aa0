"""The peers by name; each is opened only where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from monolane.bench.peers.peer import Peer, Wanted, reason
from monolane.errors import UsageError

Say = Callable[[str], None]


def _torch_compile(wanted: Wanted) -> Peer:
    from monolane.bench.peers.torch_peer import TorchPeer

    return TorchPeer(wanted)


def _transformers(wanted: Wanted) -> Peer:
    from monolane.bench.peers.transformers_peer import TransformersPeer

    return TransformersPeer(wanted)


def _llama_cpp(wanted: Wanted) -> Peer:
    from monolane.bench.peers.llamacpp import LlamaCpp

    return LlamaCpp(wanted, widened=False)


def _llama_cpp_bf16(wanted: Wanted) -> Peer:
    from monolane.bench.peers.llamacpp import LlamaCpp

    return LlamaCpp(wanted, widened=True)


def _vllm(wanted: Wanted) -> Peer:
    from monolane.bench.peers.served_peer import VLLM, ServedPeer

    return ServedPeer(VLLM, wanted)


def _sglang(wanted: Wanted) -> Peer:
    from monolane.bench.peers.served_peer import SGLANG, ServedPeer

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


def _warm(peer: Peer) -> Peer:
    """The first answers compile, record graphs and raise clocks."""
    try:
        for tokens in (4, 4):
            peer.ask([1, 2, 3, 4], tokens)
    except BaseException:
        peer.close()
        raise
    return peer
