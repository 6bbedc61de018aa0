"""A model whose answers are written down beforehand, for tests of everything above the target."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from monolane.engine.llm import LLM
from monolane.errors import TargetError
from monolane.model.chat import ChatTemplate
from monolane.model.config import ModelConfig, Rope
from monolane.model.tokenizer import Tokenizer
from monolane.target.base import Finish, Request, Token

TOKEN_US = 250  # what every token takes on the fake clock
FIRST_TOKEN_US = 2_000


def byte_tokenizer(add_bos: bool = False) -> Tokenizer:
    """One token per byte: characters beyond ASCII span several tokens. Then <bos> and <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    return Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<eos>"}, add_bos=add_bos, add_eos=False)


# Renders a conversation as [user]Hi[assistant].
TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"


class FakeTarget:
    """Answers every request with ``answer``, over and over, and checks what it is told about its cache."""

    name = "fake"
    bytes_per_token = 1_000
    caches = 1
    stall_s = 1.0

    def __init__(self, answer: Sequence[int], context: int = 256) -> None:
        self.answer = list(answer)
        self.context = context
        self.batch = 1  # tokens handed over at a time
        self.pace_s = 0.0  # real time between tokens; an abort does not wait for it
        self.fails_after: int | None = None  # tokens
        self.first_token = threading.Event()
        self.requests: list[Request] = []
        self.cache: list[int] = []
        self.running: FakeRun | None = None
        self.closed = False

    def run(self, request: Request) -> FakeRun:
        assert not self.closed
        assert len(request.tokens) + request.max_tokens <= self.context
        assert request.cached < len(request.tokens)
        assert list(request.tokens[: request.cached]) == self.cache[: request.cached], "the engine lied about the cache"
        if self.running is not None and self.running.finish is None:
            raise TargetError("a run is still under way")
        self.requests.append(request)
        self.running = FakeRun(self, request)
        return self.running

    def copy(self, source: int, destination: int, tokens: int) -> None:
        raise NotImplementedError

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


class FakeRun:
    def __init__(self, target: FakeTarget, request: Request) -> None:
        self.target = target
        self.request = request
        self.start_ns = 1_000_000
        self.steps = 0
        self.finish: Finish | None = None
        self._aborted = threading.Event()

    def abort(self) -> None:
        self._aborted.set()

    def __iter__(self) -> Iterator[list[Token]]:
        tokens = self._tokens()
        while batch := list(itertools.islice(tokens, self.target.batch)):
            yield batch

    def _tokens(self) -> Iterator[Token]:
        target, request = self.target, self.request
        if self._aborted.is_set():
            self.finish = Finish.ABORT
            return
        target.cache = list(request.tokens)
        for count, id_ in enumerate(itertools.cycle(target.answer)):
            if count == target.fails_after:
                self.finish, target.cache = Finish.ABORT, []
                raise TargetError("worker 1 got stuck in stage 7", "Try again.")
            if self._aborted.wait(target.pace_s) if target.pace_s else self._aborted.is_set():
                self.finish = Finish.ABORT
            elif count and target.cache[-1] in request.stop_tokens:
                self.finish = Finish.STOP
            elif count == request.max_tokens:
                self.finish = Finish.LENGTH
            if self.finish:
                del target.cache[-1 if count else len(target.cache) :]  # the last one was never fed
                return
            target.cache.append(id_)
            time_ns = self.start_ns + (FIRST_TOKEN_US + count * TOKEN_US) * 1_000
            top = tuple((other, -1.0 - other) for other in range(request.logprobs or 0))
            target.first_token.set()
            yield Token(id_, time_ns, None if request.logprobs is None else -0.5, top)


def fake_model(add_bos: bool = False, with_template: bool = True, longest: int = 1024) -> SimpleNamespace:
    tokenizer = byte_tokenizer(add_bos)
    config = ModelConfig(
        family="fake", hidden=8, layers=1, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=tokenizer.vocab_size,
        context=longest, norm_eps=1e-5, rope=Rope(1e4), windows=(None,),
    )  # fmt: skip
    return SimpleNamespace(
        name="fake-model", path=Path("fake"), config=config, weights=None, tokenizer=tokenizer,
        chat=ChatTemplate(TEMPLATE, {}) if with_template else None,
        stop_tokens=frozenset({tokenizer.token_id("<eos>")}),
    )  # fmt: skip


def encode(text: str) -> list[int]:
    """Token ids of an answer; "<eos>" is the end token."""
    return byte_tokenizer().encode(text, special=False)


def fake_llm(answer: str, context: int = 256, **model: bool | int) -> tuple[LLM, FakeTarget]:
    """An LLM that answers ``answer``, and the target below it."""
    import monolane.target

    target = FakeTarget(encode(answer), context)
    real = monolane.target.open_target
    monolane.target.open_target = lambda *_, **__: target
    try:
        return LLM(fake_model(**model)), target
    finally:
        monolane.target.open_target = real
