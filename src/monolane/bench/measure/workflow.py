"""The workflow of an agent: it plans, writes, tests and revises, each time with the whole conversation as the prompt.

The conversation is in the engine's KV cache, so a turn computes only its instruction and its answer. A conversation
that has filled its context ends, and a new one begins with the same system prompt.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from monolane.bench.measure import queue, timing
from monolane.bench.measure.decode import Say
from monolane.bench.measure.subject import Subject
from monolane.engine.result import Completion
from monolane.engine.session import Session

TURNS = (  # the instruction, and the tokens of the answer
    ("Plan: say which files change, in which order, and what could go wrong.", 384),
    ("Write: the whole code of the change, with its types and comments.", 1024),
    ("Test: one test for every promise of the plan, and what each of them shows.", 384),
    ("Revise: fix what the tests have shown, and give the changed code again.", 768),
)
SYSTEM = "You are an engineer who changes one thing at a time and explains every step."
CONTEXT = 16384  # tokens: the default limit of a conversation
USUAL, PUBLISHED = 100.0, 3000.0  # tokens per second, for comparison: of usual services, and claimed by a closed engine

METHOD = (
    "an agent's loop through the engine: turns of plan (384 tokens), write (1,024), test (384) and revise (768), "
    "greedy and of fixed length, each with the whole conversation before it as its prompt; a conversation that would "
    "outgrow its context ends and a new one begins; wall time by the host's clock, from the first request to the last "
    "token, prompts, text and everything between the turns included; cached tokens as the engine reports them"
)


def measure(subject: Subject, total: int, context: int, say: Say) -> dict[str, Any]:
    """Generate ``total`` tokens in conversations of at most ``context`` tokens."""
    loop = _Loop(subject, total, context, say)
    _, wall_s = timing.timed(loop.run)
    prompts = sum(turn["prompt_tokens"] for turn in loop.turns)
    cached = sum(turn["cached_tokens"] for turn in loop.turns)
    return {
        "benchmark": "workflow",
        "model": subject.name,
        "dtype": subject.dtype,
        "device": subject.target.name,
        "context": context,
        "tokens": total,
        "wall_s": wall_s,
        "tokens_per_second": total / wall_s,
        "wall_s_at": {f"{speed:.0f} tok/s": total / speed for speed in (USUAL, PUBLISHED)},
        "conversations": loop.conversations,
        "prompt_tokens": prompts,
        "cached_tokens": cached,
        "computed_prompt_tokens": prompts - cached,
        "bytes_per_token": subject.target.bytes_per_token,
        "turns": loop.turns,
        "method": METHOD,
    }


def shortest_context() -> int:
    """Enough tokens for the longest turn, its instruction and the system prompt, in any tokenizer."""
    return max(tokens for _, tokens in TURNS) + 512


class _Loop:
    def __init__(self, subject: Subject, total: int, context: int, say: Say) -> None:
        self._subject, self._total, self._context, self._say = subject, total, context, say
        self._session = Session(subject.target)
        encode = subject.model.tokenizer.encode
        self._system = encode(f"{SYSTEM}\n")
        self._instructions = [(encode(f"\n\n{text}\n", special=False), tokens) for text, tokens in TURNS]
        self.turns: list[dict[str, int | float]] = []
        self.conversations = 0

    def run(self) -> None:
        made = 0
        conversation: list[int] = []
        while made < self._total:
            instruction, tokens = self._instructions[len(self.turns) % len(TURNS)]
            tokens = min(tokens, self._total - made)
            if not conversation or len(conversation) + len(instruction) + tokens > self._context:
                self.conversations += 1
                conversation = self._system + self._encoded_number()
            conversation += instruction
            found, seconds = timing.timed(partial(self._answer, conversation, tokens))
            conversation += found.token_ids
            made += tokens
            self.turns.append(
                {
                    "prompt_tokens": found.prompt_tokens,
                    "cached_tokens": found.timings.cached_tokens,
                    "tokens": tokens,
                    "seconds": seconds,
                }
            )
            self._say(f"{made:,} of {self._total:,} tokens, {found.timings.cached_tokens:,} cached")

    def _answer(self, conversation: list[int], tokens: int) -> Completion:
        return queue.answer(self._subject, self._session, conversation, tokens)

    def _encoded_number(self) -> list[int]:
        """The number of the conversation, so that the model does not generate the same answers again."""
        return self._subject.model.tokenizer.encode(f"Task {self.conversations}.", special=False)
