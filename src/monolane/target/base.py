"""What every target offers: run one request natively, hand its tokens over as they come, stop when told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolane.program.sample import Sampling


class Finish(Enum):
    """Why a run ended."""

    STOP = "stop"  # a stop token was sampled; it is the last token handed over
    LENGTH = "length"  # max_tokens were made
    ABORT = "abort"  # the host asked for it


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it. ``tokens`` is the whole sequence; its first ``cached`` tokens are
    known to be in the cache of ``slot`` already (from an earlier request) and are not computed again.
    At least one token must be left to compute. ``len(tokens) + max_tokens`` fits the context."""

    tokens: Sequence[int]
    cached: int
    max_tokens: int
    stop_tokens: frozenset[int]
    sampling: Sampling
    logprobs: int | None = None  # None: no logprobs; n: the sampled token's and the n likeliest (0 to 20)
    slot: int = 0  # which of the target's caches to use


@dataclass(frozen=True)
class Token:
    """A sampled token. ``time_ns`` is read by the target's own clock when the token was sampled."""

    id: int
    time_ns: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Run(Protocol):
    """A request under way. Iterating yields the tokens in batches, as many as are ready, until the run ends."""

    def __iter__(self) -> Iterator[list[Token]]: ...

    def abort(self) -> None:
        """Stop within one token. Safe from any thread, and after the end."""

    @property
    def finish(self) -> Finish | None:
        """Why the run ended; None while it has not."""

    @property
    def start_ns(self) -> int:
        """When the target took the request up, on the clock of ``Token.time_ns``."""

    @property
    def steps(self) -> int:
        """A sign of life: it grows as the device goes on, in the prompt too; see ``Target.stall_s``."""


class Target(Protocol):
    """A compiled model with its weights and a few caches. It runs one request at a time."""

    @property
    def name(self) -> str:
        """For people: ``cpu (2 workers, avx512)``."""

    @property
    def context(self) -> int:
        """Tokens a cache holds."""

    @property
    def slots(self) -> int:
        """Caches: so many conversations can stay resident."""

    @property
    def bytes_per_token(self) -> int:
        """Weight bytes streamed for one decoded token."""

    @property
    def stall_s(self) -> float:
        """A run whose ``steps`` have not grown for so many seconds is stuck, and so is the target."""

    def run(self, request: Request) -> Run:
        """Start a request. TargetError where one is still running."""

    def copy(self, source: int, slot: int, tokens: int) -> None:
        """Fill a cache with the first ``tokens`` tokens of another. No request runs meanwhile."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[len(tokens), vocab]: the logits after each token of a sequence, from an empty cache. It takes slot 0."""

    def close(self) -> None:
        """End the workers and free the memory. A run under way is aborted first."""
