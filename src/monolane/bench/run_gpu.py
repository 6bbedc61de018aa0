"""One shape on a GPU in one run: the read ceiling, ours and PyTorch side by side, then growing contexts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolane.bench import context_gpu, decode_gpu, record, shapes, torch_peer
from monolane.bench.ceiling_gpu import GpuReadCeiling
from monolane.bench.decode_gpu import Say
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.progress import Silent
from monolane.target.cuda.opening import open_cuda, required_gpu

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Device

PACKAGES = ("numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "triton")


def run(shape: str, rounds: int, contexts: Sequence[int], peers: bool, folder: Path, say: Say) -> None:
    """Measure and write; a result is written as soon as it is there."""
    config = shapes.named(shape)
    check_contexts(contexts, config)
    device = required_gpu()
    longest = max([decode_gpu.LONG_PROMPT_TOKENS, decode_gpu.PROMPT_TOKENS + decode_gpu.TOKENS, *contexts])
    say(f"{shape}: packing and loading")
    with (
        closing(GpuReadCeiling(device)) as ceiling,
        closing(
            open_cuda(config, shapes.MadeUpWeights(config), longest + context_gpu.TOKENS, device, Silent())
        ) as target,
    ):
        peer = _open_peer(config, say) if peers else "not asked for"
        found = {torch_peer.NAME: peer.decode_us} if isinstance(peer, torch_peer.TorchPeer) else {}
        result = decode_gpu.measure(shape, config.vocab, target, ceiling.measure, found, rounds, say)
        result["peers_skipped"] = {torch_peer.NAME: peer} if isinstance(peer, str) else {}
        say(_summary(result))
        say(f"written: {record.write(f'decode-{shape}-cuda', result | _where(device), folder)}")
        if isinstance(peer, torch_peer.TorchPeer):
            peer.close()
        if contexts:
            result = context_gpu.measure(shape, config, target, ceiling.measure, contexts, rounds, say)
            say(f"written: {record.write(f'context-{shape}-cuda', result | _where(device), folder)}")


def check_contexts(contexts: Sequence[int], config: ModelConfig) -> None:
    """Refuse what a model cannot hold, before minutes are spent on the rest."""
    limit = config.context - context_gpu.TOKENS
    for length in contexts:
        if not 1 <= length <= limit:
            raise UsageError(
                f"A context of {length} tokens cannot be measured.", f"Choose contexts between 1 and {limit}."
            )


def _open_peer(config: ModelConfig, say: Say) -> torch_peer.TorchPeer | str:
    """The peer, or why there is none. Whatever goes wrong with it must not take our own result along."""
    say(f"{torch_peer.NAME}: compiling, a minute or more")
    try:
        return torch_peer.TorchPeer(config, decode_gpu.PROMPT_TOKENS, decode_gpu.TOKENS)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if isinstance(error, torch_peer.PeerMissingError):
            reason = str(error)
        say(f"{torch_peer.NAME} is skipped: {reason}")
        return reason


def _summary(result: dict[str, Any]) -> str:
    firsts = ", ".join(f"{found['host']:.1f} ms after {n}" for n, found in result["first_token_ms"].items())
    peers = "".join(f"; {name} {found['us_per_token']:.1f}" for name, found in result["peers"].items())
    return (
        f"{result['model']}: {result['us_per_token']:.1f} µs/token, by the device {result['us_per_token_device']:.1f}, "
        f"{result['fraction_of_ceiling']:.1%} of {result['ceiling_bytes_per_s'] / 1e12:.3f} TB/s{peers}; "
        f"first token {firsts}; same tokens in all rounds: {result['same_tokens_in_all_rounds']}"
    )


def _where(device: Device) -> dict[str, Any]:
    return {"machine": record.machine() | {"gpu": record.gpu(device)}, "versions": record.versions(*PACKAGES)}
