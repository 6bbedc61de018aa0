"""From a prompt and its parameters to a request for the target, with every mistake found before anything runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monolane.engine.params import SamplingParams, check_token_ids
from monolane.engine.transcript import Transcript
from monolane.errors import ContextLengthError, UsageError
from monolane.target.base import Request

if TYPE_CHECKING:
    from monolane.model.load import Model


def make_transcript(model: Model, context: int, tokens: Sequence[int], params: SamplingParams) -> Transcript:
    """The request for the target, and the empty answer to it. The session chooses the KV cache when it runs."""
    vocab = model.config.vocab
    check_token_ids("The prompt", tokens, vocab)
    params.check_ids(vocab)
    room = _room(model, context, tokens)
    seed = secrets.randbits(53) if params.seed is None else params.seed  # 53 bits: exact in any JSON reader
    ends = frozenset() if params.ignore_eos else frozenset(model.stop_tokens)
    request = Request(
        tokens=tokens,
        cached=0,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        stop_tokens=ends | frozenset(params.stop_token_ids),
        sampling=params.sampling(seed, vocab),
        logprobs=params.logprobs,
    )
    return Transcript(request, model.tokenizer.stream(tokens), params.stop_strings)


def _room(model: Model, context: int, tokens: Sequence[int]) -> int:
    """The number of tokens that the answer may have before the context is full."""
    if not tokens:
        raise UsageError("The prompt is empty.", "This model has no token to start from: give at least one word.")
    room = context - len(tokens)
    if room < 1:
        longest = model.config.context
        raise ContextLengthError(
            f"The prompt has {len(tokens)} tokens, and the context holds {context}, answer included.",
            f"Shorten it, or open the model with a larger context (context=, --context), up to {longest}."
            if longest > context
            else f"Shorten it: {longest} is all that this model was made for.",
            context,
            len(tokens),
        )
    return room
