"""Throughput over a queue: all requests are there from the start, and the engine answers them one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monolane.bench.measure import timing
from monolane.bench.measure.subject import Subject
from monolane.engine.params import SamplingParams
from monolane.engine.prompt import make_transcript
from monolane.engine.result import Completion
from monolane.engine.session import Session
from monolane.engine.stream import Stream
from monolane.errors import TargetError


@dataclass(frozen=True)
class Queue:
    """Tokens generated and the time for all of a queue, which includes prefill, launches and detokenization."""

    tokens: int
    seconds: float


def answer(subject: Subject, session: Session, prompt: Sequence[int], tokens: int) -> Completion:
    """One greedy answer of fixed length, as text, through the engine."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    stream = Stream(session, make_transcript(subject.model, subject.target.context, prompt, params))
    for _ in stream:
        pass
    if len(stream.result.token_ids) != tokens:
        raise TargetError(f"{len(stream.result.token_ids)} tokens were made, not {tokens}.")
    return stream.result


def drain(subject: Subject, requests: int, prompt_tokens: int, tokens: int) -> Queue:
    """Answer all requests of a queue. No prefix is cached: the session is new, and no two prompts share a prefix."""
    session = Session(subject.target)
    prompts = [subject.prompt(prompt_tokens, 1 + number) for number in range(requests)]
    made, seconds = timing.timed(lambda: [answer(subject, session, prompt, tokens) for prompt in prompts])
    return Queue(sum(len(found.token_ids) for found in made), seconds)
