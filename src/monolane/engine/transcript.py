"""From the target's tokens to the text a reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monolane.engine.result import Completion, Delta, FinishReason, Timings, TokenLogprob
from monolane.engine.stops import StopFilter
from monolane.target.base import Request, Token

if TYPE_CHECKING:
    from monolane.model.tokenizer import TokenStream


class Transcript:
    """Grows with every batch of tokens, up to the first stop token or stop string."""

    def __init__(
        self, decoder: TokenStream, stops: Sequence[str], stop_tokens: frozenset[int], with_logprobs: bool
    ) -> None:
        self._decoder = decoder
        self._filter = StopFilter(stops)
        self._stop_tokens = stop_tokens
        self._chars = 0  # that the tokens so far have completed, also those that a stop string holds back
        self.text = ""
        self.tokens: list[Token] = []
        self.logprobs: list[TokenLogprob] | None = [] if with_logprobs else None

    @property
    def stopped(self) -> bool:
        """A stop string has come: nothing after it counts."""
        return self._filter.matched

    @property
    def stop_string(self) -> str | None:
        return self._filter.found

    def take(self, batch: Sequence[Token]) -> Delta | None:
        """What a batch adds, if anything can be shown."""
        text, taken, offsets = "", [], []
        for token in batch:
            if self.stopped or token.id in self._stop_tokens:
                break
            taken.append(token)
            offsets.append(self._chars)
            piece = self._decoder.push([token.id])
            self._chars += len(piece)
            text += self._filter.push(piece)
        return self._add(text, taken, offsets)

    def flush(self) -> Delta | None:
        """No more tokens: what was held back, if anything."""
        text = self._filter.push(self._decoder.flush())
        return self._add(text + self._filter.flush(), [], [])

    def _add(self, text: str, tokens: list[Token], offsets: list[int]) -> Delta | None:
        self.text += text
        self.tokens += tokens
        if not text and not tokens:
            return None
        ids = tuple([token.id for token in tokens])
        if self.logprobs is None:
            return Delta(text, ids)
        logprobs = [TokenLogprob.of(token, offset) for token, offset in zip(tokens, offsets, strict=True)]
        self.logprobs += logprobs
        return Delta(text, ids, tuple(logprobs))


def completion(
    request: Request,
    transcript: Transcript,
    finish: FinishReason,
    *,
    cached_tokens: int,
    queue_s: float,
    start_ns: int,
    bytes_per_token: int,
) -> Completion:
    """A request's whole answer; it ends here."""
    return Completion(
        text=transcript.text,
        token_ids=tuple([token.id for token in transcript.tokens]),
        finish_reason=finish,
        prompt_tokens=len(request.tokens),
        logprobs=None if transcript.logprobs is None else tuple(transcript.logprobs),
        seed=request.sampling.seed,
        timings=Timings.measure(
            prompt_tokens=len(request.tokens),
            cached_tokens=cached_tokens,
            queue_s=queue_s,
            start_ns=start_ns,
            times_ns=[token.time_ns for token in transcript.tokens],
            bytes_per_token=bytes_per_token,
        ),
        stop_string=transcript.stop_string,
    )
