"""An engine without a model: a real engine process under the real supervisor, which generates tokens at a set speed.

For tests and benchmarks of everything above the target. It can also be told to fail, in all the ways engines fail.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from monolane.engine.async_engine import QUEUE_LIMIT, AsyncEngine
from monolane.engine.core import PYTHON, Loaded, serve
from monolane.engine.grammar import grammar_maker
from monolane.errors import TargetError, UsageError
from monolane.target.base import Finish, Request, Token

if TYPE_CHECKING:
    from monolane.model.load import Model
    from monolane.progress import Progress

# Renders a conversation as [user]Hi[assistant].
TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"
PANGRAM = "The quick brown fox jumps over the lazy dog. "
BYTES_PER_TOKEN = 1_000_000_000
MOST_AT_ONCE = 64  # tokens handed over together where the reader has fallen behind


@dataclass(frozen=True)
class Synthetic:
    """How it behaves. ``faults``: a comma-separated list of

    load, load-crash    it cannot be loaded, or dies while it loads
    crash@n, error@n    a request dies, or fails, at its n-th token
    stall@n, freeze@n   from the n-th token on the device does nothing, or the whole process stops

    ``only_once`` is the path of a file that is made at the first fault, and after which there are no more.
    """

    tokens_per_second: float = 5_000.0
    answer: str = PANGRAM
    context: int = 8_192
    caches: int = 4
    prefill_tokens_per_second: float = 1e6
    load_s: float = 0.0
    faults: str = ""
    only_once: str = ""

    def fails(self, where: str) -> bool:
        if where not in self.faults.split(",") or (self.only_once and Path(self.only_once).exists()):
            return False
        if self.only_once:
            Path(self.only_once).touch()
        return True


def synthetic_engine(queue_limit: int = QUEUE_LIMIT, **behaviour: float | int | str) -> AsyncEngine:
    """An engine that answers with ``answer``, over and over, and ends where that says <eos>; see Synthetic."""
    options = json.dumps(behaviour)
    Synthetic(**behaviour)  # type: ignore[arg-type]  # a wrong name is seen here, and not in another process
    command = [*PYTHON, "-m", "monolane.engine.synthetic", options]
    return AsyncEngine(lambda _: synthetic_model(), lambda _: command, queue_limit=queue_limit)


@cache
def synthetic_model() -> Model:
    """One token per byte, then <bos> and <eos>. There are no weights."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    from monolane.model.chat import ChatTemplate
    from monolane.model.config import ModelConfig, Rope
    from monolane.model.load import Model
    from monolane.model.tokenizer import Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    tokenizer = Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<eos>"}, add_bos=False, add_eos=False)
    config = ModelConfig(
        family="synthetic",
        hidden=8,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=8,
        ffn=8,
        vocab=tokenizer.vocab_size,
        context=1 << 20,
        norm_eps=1e-5,
        rope=Rope(1e4),
        windows=(None,),
    )
    end = tokenizer.token_id("<eos>")
    assert end is not None
    return Model(
        name="synthetic",
        path=Path("synthetic"),
        config=config,
        weights=None,  # type: ignore[arg-type]  # nobody asks for them
        tokenizer=tokenizer,
        chat=ChatTemplate(TEMPLATE, {}),
        stop_tokens=frozenset({end}),
    )


class SyntheticTarget:
    """Keeps its caches like a real one, and finds out when it is told wrong about them."""

    name = "synthetic"
    bytes_per_token = BYTES_PER_TOKEN
    stall_s = 0.7

    def __init__(self, behaviour: Synthetic, answer: Sequence[int]) -> None:
        self.behaviour = behaviour
        self.answer = answer
        self.context = behaviour.context
        self.caches = behaviour.caches
        self.cached: list[list[int]] = [[] for _ in range(behaviour.caches)]  # the tokens in each cache
        self.busy = False

    def run(self, request: Request) -> SyntheticRun:
        cache = self.cached[request.cache]
        if self.busy or list(request.tokens[: request.cached]) != cache[: request.cached]:
            raise TargetError("A request is still running, or its tokens are not in the cache.")
        self.busy = True
        return SyntheticRun(self, request)

    def copy(self, source: int, destination: int, tokens: int) -> None:
        self.cached[destination] = self.cached[source][:tokens]

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        raise TargetError("There is no model behind this target.")

    def close(self) -> None:
        pass


class SyntheticRun:
    """Tokens by the clock: as many as should have been made by now."""

    def __init__(self, target: SyntheticTarget, request: Request) -> None:
        self._target = target
        self._request = request
        self._aborted = threading.Event()
        self._stalled = False
        self.start_ns = time.monotonic_ns()
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[list[Token]]:
        target, request = self._target, self._request
        cache = target.cached[request.cache] = list(request.tokens)
        try:
            for batch in self._batches():
                cache += [token.id for token in batch]
                yield batch
        finally:
            del cache[max(len(request.tokens), len(cache) - 1) :]  # the last one was never fed
            self.finish = self.finish or Finish.ABORT
            target.busy = False

    def abort(self) -> None:
        self._aborted.set()

    @property
    def steps(self) -> int:
        return 0 if self._stalled else time.monotonic_ns()

    def _batches(self) -> Iterator[list[Token]]:
        behaviour, request = self._target.behaviour, self._request
        period_ns = 1e9 / behaviour.tokens_per_second
        first_ns = self.start_ns + (len(request.tokens) - request.cached) / behaviour.prefill_tokens_per_second * 1e9
        batch: list[Token] = []
        for count, token in enumerate(itertools.cycle(self._target.answer)):
            due_ns = int(first_ns + count * period_ns)
            early_s = (due_ns - time.monotonic_ns()) / 1e9
            if batch and (early_s > 0 or len(batch) == MOST_AT_ONCE):
                yield batch
                batch = []
            if self._aborted.wait(early_s) if early_s > 0 else self._aborted.is_set():
                break
            self._fail(count)
            batch.append(self._token(token, due_ns))
            if token in request.stop_tokens:
                self.finish = Finish.STOP
            elif count + 1 == request.max_tokens:
                self.finish = Finish.LENGTH
            if self.finish:
                break
        if batch:
            yield batch

    def _token(self, token: int, time_ns: int) -> Token:
        if self._request.logprobs is None:
            return Token(token, time_ns)
        return Token(token, time_ns, -0.5, tuple((other, -1.0 - other) for other in range(self._request.logprobs)))

    def _fail(self, count: int) -> None:
        fails = self._target.behaviour.fails
        if fails(f"crash@{count}"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if fails(f"error@{count}"):
            raise TargetError("Worker 1 got stuck.", "Load the model again.")
        if fails(f"freeze@{count}"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fails(f"stall@{count}"):
            self._stalled = True
            threading.Event().wait()


def main() -> None:
    behaviour = Synthetic(**json.loads(sys.argv[1]))

    def load(progress: Progress) -> Loaded:
        _pretend_to_load(progress, behaviour.load_s)
        if behaviour.fails("load-crash"):
            os.abort()
        if behaviour.fails("load"):
            raise UsageError("It was told not to load.", "Tell it otherwise.")
        model = synthetic_model()
        target = SyntheticTarget(behaviour, model.tokenizer.encode(behaviour.answer, special=False))
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
