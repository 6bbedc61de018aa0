"""From the target's tokens to text: incremental detokenization, stop tokens, stop strings, logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monolane.engine.result import Completion, Delta, FinishReason, Timings, TokenLogprob
from monolane.engine.stops import StopFilter
from monolane.target.base import Finish, Request, Token

if TYPE_CHECKING:
    from monolane.model.detokenize import TokenStream

_REASONS: dict[Finish | None, FinishReason] = {Finish.STOP: "stop", Finish.LENGTH: "length"}


class Transcript:
    """The answer to a request so far. It grows with every batch, up to the first stop token or stop string."""

    def __init__(self, request: Request, decoder: TokenStream, stops: Sequence[str]) -> None:
        self.request = request
        self._decoder = decoder
        self._filter = StopFilter(stops)
        self._chars = 0  # characters that the tokens so far have completed, including those the stop filter holds back
        self._text = ""
        self.tokens: list[Token] = []
        self._logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; nothing after it is part of the answer."""
        return self._filter.matched

    def take(self, batch: Sequence[Token]) -> Delta | None:
        """Add a batch of tokens. The result is what can be shown now; None where that is nothing."""
        text, taken, offsets = "", [], []
        for token in batch:
            if self.stopped or token.id in self.request.stop_tokens:
                break
            taken.append(token)
            offsets.append(self._chars)
            piece = self._decoder.push([token.id])
            self._chars += len(piece)
            text += self._filter.push(piece)
        return self._add(text, taken, offsets)

    def flush(self) -> Delta | None:
        """No more tokens will come. The result is the text that was held back; None where that is nothing."""
        text = self._filter.push(self._decoder.flush())
        return self._add(text + self._filter.flush(), [], [])

    def finish_reason(self, finish: Finish | None) -> FinishReason:
        """Why the answer ended, given why its run did: after a stop string the run was aborted, the answer was not."""
        return "stop" if self.stopped else _REASONS.get(finish, "abort")

    def completion(
        self, finish: FinishReason, *, cached_tokens: int, queue_s: float, start_ns: int, bytes_per_token: int
    ) -> Completion:
        """The whole answer."""
        prompt_tokens = len(self.request.tokens)
        return Completion(
            text=self._text,
            token_ids=tuple([token.id for token in self.tokens]),
            finish_reason=finish,
            prompt_tokens=prompt_tokens,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            seed=self.request.sampling.seed,
            timings=Timings.measure(
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                queue_s=queue_s,
                start_ns=start_ns,
                times_ns=[token.time_ns for token in self.tokens],
                bytes_per_token=bytes_per_token,
            ),
            stop_string=self._filter.found,
        )

    def _add(self, text: str, tokens: list[Token], offsets: list[int]) -> Delta | None:
        self._text += text
        self.tokens += tokens
        if not text and not tokens:
            return None
        ids = tuple([token.id for token in tokens])
        if self._logprobs is None:
            return Delta(text, ids)
        logprobs = [TokenLogprob.of(token, offset) for token, offset in zip(tokens, offsets, strict=True)]
        self._logprobs += logprobs
        return Delta(text, ids, tuple(logprobs))
