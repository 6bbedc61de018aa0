"""The interface of a peer, which is another engine that runs the same weights, and how it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monolane.bench.measure import timing
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights


class PeerMissingError(Exception):
    """The peer cannot run here. The message is one line that says why."""


class Peer(Protocol):
    """A loaded model. It answers greedily, with exactly the requested number of tokens, and without prefix caching."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """Versions and settings, for the result."""

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        """Generate ``tokens`` tokens; returns when the last one is complete. Raises if there were fewer."""

    def close(self) -> None:
        """Free the model's memory."""


@dataclass(frozen=True)
class Wanted:
    """What a peer has to run, and where."""

    config: ModelConfig
    weights: Weights
    path: Path | None  # of the model's file or folder; None where the weights are made up
    kind: str  # cuda or cpu: the kind of our target; the peer runs on the same device
    threads: int  # of a peer on the CPU
    context: int  # tokens of prompt and answer together


def reason(error: Exception) -> str:
    """Why a peer was skipped, in one line."""
    text = str(error) if isinstance(error, PeerMissingError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:200]


@dataclass(frozen=True)
class Times:
    """Of one peer in one round, by the host's clock, computed as for Monolane."""

    us_per_token: float  # the difference of two requests
    first_token_ms: float  # until the end of a request for one token


def measure(peer: Peer, prompt: Sequence[int], tokens: int) -> Times:
    _, one = timing.timed(lambda: peer.ask(prompt, 1))
    _, many = timing.timed(lambda: peer.ask(prompt, tokens))
    return Times(timing.difference_us(one, many, tokens), one * 1e3)
