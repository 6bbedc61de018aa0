"""What a peer is: somebody else who runs the same weights, and how its time is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monolane.bench.measure import timing
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights


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
