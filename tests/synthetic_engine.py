"""A synthetic engine: a real process under the real supervisor, in which the fake target answers at a set speed.

For tests of everything above the target, and for benchmarks of the server alone. It finds its modules beside this file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fake_model import encode, fake_model
from fake_target import FakeTarget, Faults, RealClock
from monolane.engine.async_engine import QUEUE_LIMIT, AsyncEngine
from monolane.engine.core import Loaded, serve
from monolane.engine.grammar import grammar_maker
from monolane.engine.queue import WaitingQueue
from monolane.errors import NotEnoughMemoryError, UsageError

if TYPE_CHECKING:
    from monolane.model.load import Model
    from monolane.progress import Progress

PANGRAM = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True)
class Synthetic:
    """How it behaves. ``faults`` and ``only_once``: those of the target (see Faults), and

    load, load-crash    it cannot be loaded, or dies while it loads
    memory              it needs 3,000 bytes, and 1,000 are there, or 100 fewer where it is ``short``
    """

    tokens_per_second: float = 5_000.0
    answer: str = PANGRAM
    context: int = 8_192
    caches: int = 4
    prefill_tokens_per_second: float = 1e6
    load_s: float = 0.0
    short: int = 0
    faults: str = ""
    only_once: str = ""

    def target(self) -> FakeTarget:
        return FakeTarget(
            encode(self.answer),
            name="synthetic",
            context=self.context,
            caches=self.caches,
            bytes_per_token=1_000_000_000,
            vocab=fake_model().config.vocab,
            clock=RealClock(),
            prompt_s=1 / self.prefill_tokens_per_second,
            token_s=1 / self.tokens_per_second,
            at_once=None,
            faults=Faults(self.faults, self.only_once),
        )


def synthetic_engine(
    queue_limit: int = QUEUE_LIMIT,
    model: Model | None = None,
    limits: Mapping[str, Any] | None = None,
    queue: WaitingQueue | None = None,
    **behaviour: float | int | str,
) -> AsyncEngine:
    """An engine that answers with ``answer``, over and over, and ends where that says <eos>; see Synthetic. ``limits``
    are AsyncEngine's for answers."""
    options = json.dumps(behaviour)
    Synthetic(**behaviour)  # type: ignore[arg-type]  # a wrong name is seen here, and not in another process
    command = [sys.executable, __file__, options]
    queue = queue or WaitingQueue(queue_limit)
    return AsyncEngine(lambda _: model or fake_model(), lambda _: command, queue=queue, **(limits or {}))


def main() -> None:
    behaviour = Synthetic(**json.loads(sys.argv[1]))

    def load(progress: Progress) -> Loaded:
        _pretend_to_load(progress, behaviour.load_s)
        target = behaviour.target()
        if target.faults.strike("load-crash"):
            os.abort()
        if target.faults.strike("memory"):
            raise NotEnoughMemoryError("It needs more.", "Less.", 3_000, 1_000 - 100 * behaviour.short)
        if target.faults.strike("load"):
            raise UsageError("It was told not to load.", "Tell it otherwise.")
        model = fake_model()
        return target, grammar_maker(model.tokenizer, model.stop_tokens, model.config.vocab)

    serve(load)


def _pretend_to_load(progress: Progress, seconds: float) -> None:
    parts = 20
    progress.start(parts, "loading nothing")
    for _ in range(parts):
        time.sleep(seconds / parts)
        progress.advance(1)
    progress.done()


if __name__ == "__main__":
    main()
