"""``monolane bench``: checks the options, opens the model, runs the benchmarks, and writes each result when it is
complete."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monolane.bench import output_path
from monolane.bench.measure import accuracy, contexts, decode, lengths, routing, server, stages, timing
from monolane.bench.measure import subject as subjects
from monolane.bench.measure import workflow as workflows
from monolane.bench.measure.decode import Lengths
from monolane.bench.measure.subject import Subject
from monolane.bench.measure.surroundings import Surroundings, look_around
from monolane.bench.peers import registry
from monolane.bench.peers.peer import Wanted
from monolane.bench.report import picture, record
from monolane.bench.trace import run as trace_run
from monolane.errors import MonolaneError, UsageError
from monolane.model.load import Model
from monolane.progress import Progress

MOST_ROUNDS, MOST_TOKENS = 1000, 1 << 20
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The options of the command. They are checked before anything is measured."""

    model: str | None = None  # a name, a folder or a file; with ``server``, the model's name on that server
    shape: str | None = None
    server: str | None = None
    api_key: str | None = field(default=None, repr=False)
    device: str = "auto"
    workers: int | None = None
    lanes: int | None = None
    placement: str = "together"
    weights: str | None = None  # "q8" or "q4": quantised while they are loaded
    routing: str = routing.EVEN  # of a shape with experts
    contexts: tuple[int, ...] = ()
    tokens: int | None = None  # None: the default of the device
    rounds: int = 5
    peers: tuple[str, ...] = ()
    workflow: int | None = None
    out: Path = record.RESULTS
    keep: bool = False  # replace results that git tracks
    picture: Path | None = None

    def __post_init__(self) -> None:
        if self.server is not None and (self.shape is not None or self.workflow is not None):
            raise UsageError("A server is measured as it is.", "Leave --shape and --workflow away, or --server.")
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise UsageError(f"--rounds is {self.rounds}.", f"Choose between 1 and {MOST_ROUNDS}.")
        if self.tokens is not None and not 2 <= self.tokens <= MOST_TOKENS:
            raise UsageError(f"--tokens is {self.tokens}.", "Two or more are needed: a speed is between two tokens.")
        if self.workflow is not None and not 1 <= self.workflow <= MOST_TOKENS:
            raise UsageError(f"--workflow is {self.workflow}.", f"Choose between 1 and {MOST_TOKENS} tokens.")
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out} is a file.", "Results go to a folder: choose another with --out.")
        if self.workflow is not None and len(self.contexts) > 1:
            raise UsageError("A workflow has one length of conversation.", "Give --context one number.")
        output_path.check(self.picture, "bench.png")

    @property
    def command(self) -> str:
        """The command that repeats this measurement, without the API key and the output paths."""
        words = [self.model] if self.model else []
        words += ["--shape", self.shape] if self.shape else []
        words += ["--server", self.server] if self.server else []
        words += ["--device", self.device] if self.device != "auto" else []
        words += ["--workers", str(self.workers)] if self.workers else []
        words += ["--lanes", str(self.lanes)] if self.lanes else []
        words += ["--placement", self.placement] if self.placement != "together" else []
        words += ["--weights", self.weights] if self.weights else []
        words += ["--routing", self.routing] if self.routing != routing.EVEN else []
        words += ["--context", ",".join(map(lengths.spelled, self.contexts))] if self.contexts else []
        words += ["--tokens", str(self.tokens)] if self.tokens else []
        words += ["--workflow", str(self.workflow)] if self.workflow else ["--rounds", str(self.rounds)]
        if self.server is None and self.workflow is None:
            words += ["--peers", ",".join(self.peers) or "none"]  # always given: the default is all peers
        return shlex.join(["monolane", "bench", *words])

    def place(self, name: str, kind: str) -> str:
        """The name of a model's results: measured in another way it has another one, so that both are kept."""
        lanes = f"{self.lanes}-lanes" if self.lanes else None
        placement = self.placement if self.placement != "together" else None
        skewed = self.routing if self.routing != routing.EVEN else None
        return "-".join(filter(None, (name, self.weights, skewed, lanes, placement, kind)))


def run(options: Options, progress: Progress, say: Say) -> list[dict[str, Any]]:
    """Run the benchmarks; returns all results, in the order in which they were written."""
    results: list[dict[str, Any]] = []

    def keep(name: str, result: dict[str, Any]) -> None:
        results.append(result | {"command": options.command})
        say(record.written(name, results[-1], options.out, options.keep))
        if (warning := timing.disagreement([row["us_per_token"] for row in result.get("rounds", ())])) is not None:
            say(f"warning: {warning}")

    if options.server is not None:
        found = server.measure(
            options.server,
            options.api_key,
            options.model,
            _with_tokens(options, server.LENGTHS),
            options.contexts,
            options.rounds,
            say,
        )
        keep(f"server-{found['model']}", found)
    else:
        name, model = subjects.find_model(options.model, options.shape, progress, options.weights, options.routing)
        kind = _kind(options)
        with _opened(options, name, model, kind, _needed(options, model, kind), progress) as (subject, around):
            _measure(options, subject, around, keep, say)
    if options.picture is not None:
        say(picture.draw(results, options.picture))
    return results


def sweep(options: Options, progress: Progress, say: Say) -> dict[str, Any]:
    """Measure the contexts alone. Those that exceed the model's context are left out, and reported as such."""
    if not options.contexts:
        raise UsageError("No context is to be measured.", "Give --context some numbers, such as 0,1k,4k.")
    name, model = subjects.find_model(options.model, options.shape, progress, options.weights, options.routing)
    kind = _kind(options)
    tokens = _context_tokens(options, kind)
    fit, left_out = contexts.fitting(options.contexts, tokens, model.config)
    if not fit:
        contexts.check(options.contexts, tokens, model.config)
    for length, why in left_out.items():
        say(f"{name}: a context of {int(length):,} is left out: {why}")
    with _opened(options, name, model, kind, fit[-1] + tokens, progress) as (subject, around):
        judged = _judged(options, subject, say)
        found = contexts.measure(subject, around, fit, tokens, options.rounds, say)
        found |= {"left_out": left_out} | judged | around.where()
        say(record.written(f"context-{options.place(name, subject.kind)}", found, options.out, options.keep))
    return found


def _measure(
    options: Options, subject: Subject, around: Surroundings, keep: Callable[[str, dict[str, Any]], None], say: Say
) -> None:
    place = options.place(subject.name, subject.kind)
    judged = _judged(options, subject, say)
    if options.workflow is not None:
        limit = _conversation(options, subject.model)
        found = workflows.measure(subject, options.workflow, limit, say)
        keep(f"workflow-{place}", found | judged | around.where())
        return
    run_lengths = _lengths(options, subject.kind)
    with registry.opened(options.peers, _wanted(options, subject, run_lengths), say) as (others, skipped):
        found = decode.measure(subject, around, others, run_lengths, options.rounds, say)
    packages = ("torch", "triton", "transformers", "xllamacpp") if options.peers else ()
    found["peers_skipped"] |= skipped
    keep(f"decode-{place}", found | judged | around.where(*packages))
    if options.contexts:
        tokens = _context_tokens(options, subject.kind)
        found = contexts.measure(subject, around, options.contexts, tokens, options.rounds, say)
        keep(f"context-{place}", found | judged | around.where())
    say("time per stage")
    try:
        by_stage = stages.measure(subject)
    except MonolaneError as error:  # the results above are written already
        say(f"time per stage is skipped: {error.message}")
        by_stage = None
    if by_stage is not None:
        keep(f"stages-{place}", by_stage | judged | around.where())


def _judged(options: Options, subject: Subject, say: Say) -> dict[str, Any]:
    """The verdict of the accuracy check, and how even the choice of experts was; raises if the check failed."""
    model = subject.model
    prompt = subject.prompt(accuracy.PROMPT_TOKENS)
    say("accuracy: compared with an fp32 computation from the same weights")
    verdict = accuracy.require(accuracy.judge(model.config, model.weights, subject.target, prompt))
    say(f"accuracy: {verdict}")
    experts: dict[str, Any] = {}
    if model.config.experts is not None:
        shared, even = verdict.shared_experts, routing.shared_if_even(model.config.experts)
        kind = "of the model" if subject.real else options.routing
        say(f"routing: {kind}; two tokens have {shared:.2f} experts in common, {even:.2f} if all were used evenly")
        experts = {"routing": kind, "shared_experts": shared, "shared_experts_if_even": even}
    if verdict.divergence_of_quantising is not None:
        lost = verdict.divergence_of_quantising
        say(f"accuracy: quantising the weights to {model.dtype} has a divergence of {lost:.2e} nats from those stored")
    return {"accuracy": verdict.to_dict()} | experts


@contextmanager
def _opened(
    options: Options, name: str, model: Model, kind: str, context: int, progress: Progress
) -> Iterator[tuple[Subject, Surroundings]]:
    from monolane.target import open_target

    target = open_target(
        model.config,
        model.weights,
        device=options.device,
        workers=options.workers,
        lanes=options.lanes,
        placement=options.placement,
        context=context,
        progress=progress,
    )
    with closing(target), closing(look_around(kind, options.workers)) as around:
        yield Subject(name, model, target, options.shape is None), around


def _needed(options: Options, model: Model, kind: str) -> int:
    """The context that the benchmarks need, in tokens; raises if the model's is shorter."""
    if options.workflow is not None:
        return _conversation(options, model)
    needed = max(_lengths(options, kind).longest, trace_run.PROMPT_TOKENS + trace_run.ANSWER_TOKENS)
    if not options.contexts:
        return needed
    tokens = _context_tokens(options, kind)
    contexts.check(options.contexts, tokens, model.config)
    return max(needed, options.contexts[-1] + tokens)


def _kind(options: Options) -> str:
    """The kind of device that ``open_target`` will choose."""
    from monolane.target.cuda.opening import find_gpu

    if options.device == "auto":
        return "cuda" if options.workers is None and find_gpu() is not None else "cpu"
    return options.device


def _lengths(options: Options, kind: str) -> Lengths:
    return _with_tokens(options, decode.GPU if kind == "cuda" else decode.CPU)


def _with_tokens(options: Options, usual: Lengths) -> Lengths:
    return usual if options.tokens is None else replace(usual, tokens=options.tokens)


def _context_tokens(options: Options, kind: str) -> int:
    return options.tokens or (contexts.GPU_TOKENS if kind == "cuda" else contexts.CPU_TOKENS)


def _conversation(options: Options, model: Model) -> int:
    """The limit for a conversation of the workflow, in tokens."""
    limit = options.contexts[-1] if options.contexts else min(workflows.CONTEXT, model.config.context)
    least = workflows.shortest_context()
    if not least <= limit <= model.config.context:
        raise UsageError(
            f"Conversations of {limit} tokens are not possible.",
            f"Choose one --context between {least} and {model.config.context}.",
        )
    return limit


def _wanted(options: Options, subject: Subject, run_lengths: Lengths) -> Wanted:
    from monolane.target.cpu.machine import processors

    model = subject.model
    path = model.path if subject.real else None
    threads = options.workers or len(processors())
    return Wanted(model.config, model.weights, path, subject.kind, threads, run_lengths.prompts[0] + run_lengths.tokens)
