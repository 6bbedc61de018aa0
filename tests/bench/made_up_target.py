"""A target without a model: it makes tokens at times that are known beforehand, on clocks that only it advances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monolane.target.base import Finish, Request, Token


@dataclass
class MadeUpTarget:
    """Seconds by the host's clock: ``start_s`` before and after a request, ``prompt_s`` per position that is not
    cached, ``token_s`` per token, ``position_s`` more for every position before it, ``sampling_s`` and ``logprobs_s``
    more where they are asked for, and ``jitter_s`` more in turn. The device's clock runs ``drift`` times as fast.
    Tokens are handed over ``at_once``."""

    start_s: float = 0.004
    prompt_s: float = 0.0002
    token_s: float = 0.0006
    position_s: float = 0.0
    sampling_s: float = 0.0
    logprobs_s: float = 0.0
    jitter_s: Sequence[float] = (0.0,)
    at_once: int = 1
    drift: float = 1.0
    name: str = "cuda (made up, 132 workers)"
    context: int = 40000
    caches: int = 2
    stall_s: float = 1.0
    bytes_per_token: int = 2_400_000_000
    stops_after: int = 100_000  # tokens
    clock_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)

    def close(self) -> None:
        self.context = 0

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self.copies.append((source, destination, tokens))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        raise AssertionError("there is no model")

    def host_clock(self) -> float:
        return self.clock_s

    def device_ns(self) -> int:
        return round(self.clock_s * self.drift * 1e9)

    def run(self, request: Request) -> MadeUpRun:
        self.requests.append(request)
        self.clock_s += self.start_s
        return MadeUpRun(self, request, self.device_ns())


@dataclass
class MadeUpRun:
    target: MadeUpTarget
    request: Request
    start_ns: int
    finish: Finish | None = None
    steps: int = 0

    def __iter__(self) -> Iterator[list[Token]]:
        target, position = self.target, len(self.request.tokens)
        target.clock_s += target.prompt_s * (position - self.request.cached)
        choosing_s = target.sampling_s * (self.request.sampling.temperature > 0)
        choosing_s += target.logprobs_s * (self.request.logprobs is not None)
        batch: list[Token] = []
        for made in range(min(self.request.max_tokens, target.stops_after)):
            if made:
                jitter = target.jitter_s[made % len(target.jitter_s)]
                target.clock_s += target.token_s + target.position_s * (position + made) + choosing_s + jitter
            batch.append(Token(made % 7, target.device_ns()))
            if len(batch) == target.at_once:
                yield batch
                batch = []
        if batch:
            yield batch
        target.clock_s += target.start_s
        self.finish = self.finish or Finish.LENGTH

    def abort(self) -> None:
        self.finish = self.finish or Finish.ABORT
