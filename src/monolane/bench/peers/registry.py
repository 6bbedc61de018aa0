"""The peers by name. A peer that is not installed or fails to start is skipped."""

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


def _llama_cpp(wanted: Wanted, widened: bool = False) -> Peer:
    from monolane.bench.peers.llamacpp import LlamaCpp
    from monolane.bench.peers.llamacpp_cuda import LlamaCppCuda

    return LlamaCppCuda(wanted, widened) if wanted.kind == "cuda" else LlamaCpp(wanted, widened)


def _llama_cpp_bf16(wanted: Wanted) -> Peer:
    return _llama_cpp(wanted, widened=True)


def _vllm(wanted: Wanted) -> Peer:
    from monolane.bench.peers.served_peer import VLLM, ServedPeer

    return ServedPeer(VLLM, wanted)


def _sglang(wanted: Wanted) -> Peer:
    from monolane.bench.peers.served_peer import SGLANG, ServedPeer

    return ServedPeer(SGLANG, wanted)


# Name on the command line -> the peers it stands for, by their names in results.
MAKERS: dict[str, dict[str, Callable[[Wanted], Peer]]] = {
    "torch.compile": {"torch.compile": _torch_compile},
    "transformers": {"transformers": _transformers},
    "llama.cpp": {"llama.cpp, same file": _llama_cpp, "llama.cpp, bf16": _llama_cpp_bf16},
    "vllm": {"vllm": _vllm},
    "sglang": {"sglang": _sglang},
}


def parse(text: str) -> tuple[str, ...]:
    """The names in the value of ``--peers``: ``all``, ``none``, or names separated by commas."""
    if text.strip() in ("all", "none"):
        return tuple(MAKERS) if text.strip() == "all" else ()
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in MAKERS:
            raise UsageError(f"There is no peer {name!r}.", f"Choose all, none, or some of: {', '.join(MAKERS)}.")
    return names


@contextmanager
def opened(names: Sequence[str], wanted: Wanted, say: Say) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """The peers that could be started, warmed up, and for each other one the reason why it is skipped. No failure of a
    peer may lose our own result."""
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
    """Request two short answers, which compile kernels, capture graphs and raise clocks."""
    try:
        for tokens in (4, 4):
            peer.ask([1, 2, 3, 4], tokens)
    except BaseException:
        peer.close()
        raise
    return peer
