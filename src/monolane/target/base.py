"""The interface of all targets: run one request, deliver its tokens while it runs, stop it on demand."""

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

    STOP = "stop"  # a stop token was sampled; it is the last token delivered
    LENGTH = "length"  # max_tokens were generated
    ABORT = "abort"  # the host called abort()


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it. ``tokens`` is the whole sequence; its first ``cached`` tokens are in the KV
    cache number ``cache`` already, from an earlier request, and are not computed again. At least one token must be left
    to compute. ``len(tokens) + max_tokens`` fits the context."""

    tokens: Sequence[int]
    cached: int
    max_tokens: int
    stop_tokens: frozenset[int]
    sampling: Sampling
    logprobs: int | None = None  # None: none; n: of the sampled token and of the n likeliest tokens (0 to 20)
    cache: int = 0  # which of the target's KV caches to use: 0 to ``Target.caches`` - 1


@dataclass(frozen=True)
class Token:
    """A sampled token. ``time_ns`` is when it was sampled, on the target's own clock. ``logprob`` and ``top``, the
    (token, logprob) pairs of the likeliest tokens, best first, are there where the request asked for logprobs."""

    id: int
    time_ns: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Run(Protocol):
    """A running request. Iterating yields its tokens in batches, as many as are ready, until the run ends."""

    def __iter__(self) -> Iterator[list[Token]]: ...

    def abort(self) -> None:
        """Stop within one token. It may be called from any thread, and after the end."""

    @property
    def finish(self) -> Finish | None:
        """Why the run ended; None while it has not."""

    @property
    def start_ns(self) -> int:
        """When the target started the request, on the clock of ``Token.time_ns``."""

    @property
    def steps(self) -> int:
        """A progress counter for watchdogs: it grows while the device works, during prefill too; see
        ``Target.stall_s``."""


class Target(Protocol):
    """A compiled model with its weights and one or more KV caches. It runs one request at a time."""

    @property
    def name(self) -> str:
        """A description for people, such as ``cpu (2 x avx512)``."""

    @property
    def context(self) -> int:
        """How many tokens, of prompt and answer together, a KV cache holds."""

    @property
    def caches(self) -> int:
        """How many KV caches it holds: so many conversations can stay resident."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that are read for one decoded token."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the device's memory that it holds: weights, KV caches, buffers."""

    @property
    def stall_s(self) -> float:
        """A run whose ``steps`` have not grown for this many seconds is stuck, and the target with it."""

    def run(self, request: Request) -> Run:
        """Start a request. It raises TargetError while another one runs."""

    def copy(self, source: int, destination: int, tokens: int) -> None:
        """Copy the keys and values of the first ``tokens`` tokens from one KV cache to another. No request runs
        meanwhile."""

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[len(tokens), vocab]: the output logits after each token of a sequence, from an empty cache. KV cache 0 is
        overwritten."""

    def close(self) -> None:
        """Abort the running request, if any, end the workers and free the memory."""
