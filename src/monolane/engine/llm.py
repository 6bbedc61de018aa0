"""The Python API: open a model, ask it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from monolane.engine.params import SamplingParams, check_token_ids
from monolane.engine.result import Completion
from monolane.engine.session import Session
from monolane.engine.stream import Stream
from monolane.engine.transcript import Transcript
from monolane.errors import UsageError
from monolane.model.catalogue import DEFAULT_MODEL
from monolane.target.base import Request, Target

if TYPE_CHECKING:
    from monolane.model.config import ModelConfig
    from monolane.model.load import Model
    from monolane.model.progress import Progress
    from monolane.model.tokenizer import Tokenizer

Message = Mapping[str, object]


class LLM:
    """A model, ready to answer. It answers one request at a time; calls from several threads wait for each other.

    model    a name (``monolane models`` lists them), a hub id, a folder, a GGUF file, or a loaded Model
    device   "auto", "cuda", "cpu" or "interpreter" (NumPy: slow, for checking)
    workers  threads of the target; None: as many as suit the machine
    context  tokens of prompt and answer together that the cache holds; None: chosen for the model
    """

    def __init__(
        self,
        model: str | Path | Model = DEFAULT_MODEL,
        *,
        device: str = "auto",
        workers: int | None = None,
        context: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        from monolane.target import open_target

        self.model = _load(model, progress) if isinstance(model, str | Path) else model
        config, weights = self.model.config, self.model.weights
        target = open_target(config, weights, device=device, workers=workers, context=context, progress=progress)
        self._session = Session(target)

    @property
    def target(self) -> Target:
        return self._session.target

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def generate(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Completion:
        """Continue a prompt, text or token ids, and wait for the whole answer."""
        return _finished(self.stream(prompt, params))

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Stream:
        """Continue a prompt, piece by piece. Mistakes in the request are raised here, before anything runs."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._stream(tokens, params or SamplingParams())

    @overload
    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: Literal[False] = False
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: Literal[True]
    ) -> Stream: ...

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, stream: bool = False
    ) -> Completion | Stream:
        """Answer the last of ``messages``: mappings with ``role`` and ``content``, oldest first."""
        text = self._render(messages)
        # The template has written the special tokens itself; the tokenizer adds none.
        answer = self._stream(self.tokenizer.encode(text, special=False), params or SamplingParams())
        return answer if stream else _finished(answer)

    def close(self) -> None:
        """End what is running and free the memory."""
        self._session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _render(self, messages: Sequence[Message]) -> str:
        if self.model.chat is None:
            raise UsageError(
                f"{self.model.name} has no chat template.",
                "Use an instruction-tuned model, or generate() (`monolane generate`), which continues plain text.",
            )
        return self.model.chat.render(messages)

    def _stream(self, tokens: Sequence[int], params: SamplingParams) -> Stream:
        vocab = self.config.vocab
        check_token_ids("The prompt", tokens, vocab)
        params.check_ids(vocab)
        room = self._room(tokens)
        seed = secrets.randbits(53) if params.seed is None else params.seed  # 53 bits: exact in any JSON reader
        ends = frozenset() if params.ignore_eos else frozenset(self.model.stop_tokens)
        request = Request(
            tokens=tokens,
            cached=0,  # filled in when its turn comes
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_tokens=ends | frozenset(params.stop_token_ids),
            sampling=params.sampling(seed, vocab),
            logprobs=params.logprobs,
        )
        with_logprobs = params.logprobs is not None
        transcript = Transcript(self.tokenizer.stream(), params.stop_strings, request.stop_tokens, with_logprobs)
        return Stream(self._session, request, transcript)

    def _room(self, tokens: Sequence[int]) -> int:
        """Tokens the answer may have before the context is full."""
        if not tokens:
            raise UsageError("The prompt is empty.", "This model has no token to start from: give at least one word.")
        room = self.target.context - len(tokens)
        if room < 1:
            longest = self.config.context
            raise UsageError(
                f"The prompt has {len(tokens)} tokens, and the context holds {self.target.context}, answer included.",
                f"Shorten it, or open the model with a larger context (context=, --context), up to {longest}."
                if longest > self.target.context
                else f"Shorten it: {longest} is all that this model was made for.",
            )
        return room


def _load(spec: str | Path, progress: Progress | None) -> Model:
    from monolane.model.fetch import resolve
    from monolane.model.load import load_model

    return load_model(resolve(str(spec), progress))


def _finished(stream: Stream) -> Completion:
    for _ in stream:
        pass
    return stream.result
