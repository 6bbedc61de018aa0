"""A target without a model: it makes tokens at times that are known beforehand, on clocks that only it advances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from monolane.target.base import Finish, Request, Token


@dataclass
class MadeUpTarget:
    """Seconds by the host's clock: ``start_s`` before and after a request, ``prompt_s`` per position that is not
    cached, ``token_s`` per token, ``position_s`` more for every position before it. The device's clock runs ``drift``
    times as fast."""

    start_s: float = 0.004
    prompt_s: float = 0.0002
    token_s: float = 0.0006
    position_s: float = 0.0
    drift: float = 1.0
    name: str = "cuda (made up, 132 workers)"
    context: int = 40000
    bytes_per_token: int = 2_400_000_000
    stops_after: int = 100_000  # tokens
    clock_s: float = 0.0
    requests: list[Request] = field(default_factory=list)

    def close(self) -> None:
        self.context = 0

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

    def __iter__(self) -> Iterator[list[Token]]:
        target, position = self.target, len(self.request.tokens)
        target.clock_s += target.prompt_s * (position - self.request.cached)
        for made in range(min(self.request.max_tokens, target.stops_after)):
            if made:
                target.clock_s += target.token_s + target.position_s * (position + made)
            yield [Token(made % 7, target.device_ns())]
        target.clock_s += target.start_s
        self.finish = Finish.LENGTH
