"""The decode benchmark: decode speed, time to first token, and throughput over a queue of requests, with peers.

Bandwidth drifts from minute to minute on a shared machine, and with the clocks of a GPU. So every round measures
everything once, between two measurements of the read ceiling. Fractions of the ceiling and ratios to peers are computed
within a round, and medians over the rounds are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from monolane.bench.measure import queue, timing
from monolane.bench.measure.subject import Subject
from monolane.bench.measure.surroundings import Surroundings
from monolane.bench.peers.peer import Peer, reason
from monolane.bench.peers.peer import measure as measure_peer
from monolane.program.sample import MAX_LOGPROBS, Sampling

Say = Callable[[str], None]

METHOD = (
    "batch 1, fixed lengths; rounds that measure ceiling, ours, peers, ceiling; fractions formed within a round, "
    "medians of the rounds. us_per_token: greedy, (T(n) - T(1)) / (n - 1) by the host's clock, with all of the prompt "
    "but its last token in the cache; sampled_us_per_token: the same with temperature 0.7, top-p 0.9 and a fixed seed;"
    " logprobs_us_per_token: greedy, with the logprobs of the 20 likeliest tokens; which of the three comes first "
    "differs from round to round; for peers the same difference, greedy, with the prompt in both; ..._device: (time of"
    " last token - time of first) / (n - 1) by the device's clock, token_gaps_us the percentiles of greedy; "
    "first_token_ms: from asking to the end of a request for one token by the host's clock, and by the device's; "
    "throughput: requests one after another through the engine, prompts and text included, tokens / wall; energy: over"
    " those requests, prompts included; bytes_per_token: weights, counted from the plan; ceiling: the best of several "
    "ways to read memory on the same workers"
)

# Prefix of a result's keys -> sampling parameters, and the number of logprobs.
CHOICES: dict[str, tuple[Sampling, int | None]] = {
    "": (timing.GREEDY, None),
    "sampled_": (Sampling(temperature=0.7, top_p=0.9, seed=1), None),
    "logprobs_": (timing.GREEDY, MAX_LOGPROBS),
}
CLOCKS = ("us_per_token", "us_per_token_device")


@dataclass(frozen=True)
class Lengths:
    """How much is computed in a round. Prompts and answers are in tokens."""

    prompts: tuple[int, ...]  # all are timed to their first token; the answers follow the first one
    tokens: int  # of an answer
    requests: int  # in the queue

    @property
    def longest(self) -> int:
        return max(*self.prompts, self.prompts[0] + self.tokens)


GPU, CPU = Lengths((128, 1024), 512, 4), Lengths((128,), 64, 2)  # each a few seconds per round


@dataclass
class Rounds:
    """What the rounds have measured so far."""

    peers: list[Peer]  # that have not failed in any round
    failed: dict[str, str] = field(default_factory=dict)  # peer -> reason
    rows: list[dict[str, float]] = field(default_factory=list)  # one per round: name of a number -> its value
    ways: list[dict[str, float]] = field(default_factory=list)  # two per round: way to read memory -> bytes per second
    decodes: list[dict[str, timing.Decode]] = field(default_factory=list)  # one per round, by the keys of CHOICES
    queues: list[queue.Queue] = field(default_factory=list)
    energies_j: list[float | None] = field(default_factory=list)  # of each queue

    def median(self, name: str) -> float:
        return median(row[name] for row in self.rows)


def measure(
    subject: Subject, around: Surroundings, others: Sequence[Peer], lengths: Lengths, rounds: int, say: Say
) -> dict[str, Any]:
    """The result for one model. The caller adds accuracy, machine, versions and command."""
    around.ceiling()  # not counted: it raises the clocks and loads the kernels
    timing.ask(subject.target, timing.fixed_length(subject.prompt(lengths.prompts[0]), lengths.tokens))
    found = Rounds(list(others))
    for number in range(rounds):
        _round(found, subject, around, lengths, number)
        row = found.rows[-1]
        told = "".join(f", {peer.name} {row[peer.name]:,.1f}" for peer in found.peers)
        share = f"{row['fraction']:.1%} of the ceiling"
        chosen = f"sampled {row['sampled_us_per_token']:,.1f}, with logprobs {row['logprobs_us_per_token']:,.1f}"
        say(f"round {number + 1}/{rounds}: {row['us_per_token']:,.1f} µs/token, {share}; {chosen}{told}")
    return _result(subject, around, found, lengths)


def _round(found: Rounds, subject: Subject, around: Surroundings, lengths: Lengths, number: int) -> None:
    target, prompt = subject.target, subject.prompt(lengths.prompts[0])
    before = around.ceiling()
    row: dict[str, float] = {}
    for length in reversed(lengths.prompts):  # the prompt of the answers comes last, and stays in the cache
        first = timing.ask(target, timing.fixed_length(subject.prompt(length), 1))
        row |= {f"first_token_{length}_host_ms": first.seconds * 1e3, f"first_token_{length}_device_ms": first.first_ms}
    decoded = {
        choice: timing.decode(target, timing.fixed_length(prompt, lengths.tokens, len(prompt) - 1, *CHOICES[choice]))
        for choice in _rotated(list(CHOICES), number)
    }
    ours = {choice: decoded[choice] for choice in CHOICES}
    row |= {choice + clock: getattr(decode, clock) for choice, decode in ours.items() for clock in CLOCKS}
    energy = around.energy_j()
    drained = queue.drain(subject, lengths.requests, lengths.prompts[0], lengths.tokens)
    energy_after = around.energy_j()
    row["throughput"] = drained.tokens / drained.seconds
    for peer in tuple(found.peers):
        try:
            times = measure_peer(peer, prompt, lengths.tokens)
            row |= {peer.name: times.us_per_token, _first_token_of(peer): times.first_token_ms}
        except Exception as error:  # a peer's failure must not lose our own result
            found.peers.remove(peer)
            found.failed[peer.name] = reason(error)
    after = around.ceiling()
    row["ceiling"] = (max(before.values()) + max(after.values())) / 2
    row["fraction"] = target.bytes_per_token / row["us_per_token"] * 1e6 / row["ceiling"]
    found.rows.append(row)
    found.ways += [before, after]
    found.decodes.append(ours)
    found.queues.append(drained)
    found.energies_j.append(None if energy is None or energy_after is None else energy_after - energy)


def _rotated(names: list[str], by: int) -> list[str]:
    """A GPU at its power limit gets slower as it works, so what comes first differs from round to round."""
    return names[by % len(names) :] + names[: by % len(names)]


def _result(subject: Subject, around: Surroundings, found: Rounds, lengths: Lengths) -> dict[str, Any]:
    target, us = subject.target, found.median("us_per_token")
    answers = {tuple(token.id for decode in ours.values() for token in decode.long.tokens) for ours in found.decodes}
    nominal = around.nominal_bytes_per_s
    return {
        "benchmark": "decode",
        "model": subject.name,
        "dtype": subject.dtype,
        "device": target.name,
        "weights": "of the model" if subject.real else "made up",
        "context": target.context,
        "prompt_tokens": lengths.prompts[0],
        "tokens": lengths.tokens,
        **{choice + clock: found.median(choice + clock) for choice in CHOICES for clock in CLOCKS},
        "tokens_per_second": 1e6 / us,
        "token_gaps_us": timing.percentiles(ours[""].long.gaps_us for ours in found.decodes),
        "first_token_ms": {
            str(length): {clock: found.median(f"first_token_{length}_{clock}_ms") for clock in ("host", "device")}
            for length in lengths.prompts
        },
        "throughput": {
            "requests": lengths.requests,
            "prompt_tokens": lengths.prompts[0],
            "tokens_per_request": lengths.tokens,
            "tokens_per_second": found.median("throughput"),
        },
        "energy_j_per_token": _energy(found),
        "bytes_per_token": target.bytes_per_token,
        "ceiling_bytes_per_s": found.median("ceiling"),
        "ceiling_ways": {way: median(speeds[way] for speeds in found.ways) for way in found.ways[0]},
        "fraction_of_ceiling": found.median("fraction"),
        "nominal_bytes_per_s": nominal,
        "fraction_of_nominal": target.bytes_per_token / us * 1e6 / nominal if nominal else None,
        "peers": {
            peer.name: {
                "us_per_token": found.median(peer.name),
                "first_token_ms": found.median(_first_token_of(peer)),
                "ours_is_faster_by": median(row[peer.name] / row["us_per_token"] for row in found.rows),
                "what": peer.what,
            }
            for peer in found.peers
        },
        "peers_skipped": found.failed,
        "same_tokens_in_all_rounds": len(answers) == 1,
        "method": METHOD,
        "rounds": found.rows,
    }


def _first_token_of(peer: Peer) -> str:
    return f"{peer.name}: first_token_ms"


def _energy(found: Rounds) -> float | None:
    """Joules per token over the queues of all rounds: a single queue is too short for a meter that updates some ten
    times a second."""
    known = [energy for energy in found.energies_j if energy is not None]
    return sum(known) / sum(drained.tokens for drained in found.queues) if len(known) == len(found.queues) else None
