"""A trace in Chrome's trace event format, which https://ui.perfetto.dev opens: a track per worker, and three tracks for
all workers together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from monolane.bench.trace.stamps import Trace

TOGETHER, WORKERS = 1, 2  # process ids: the format calls a group of tracks a process
TOKENS, CRITICAL, HANDOFFS = 1, 2, 3  # the tracks of TOGETHER

Event = dict[str, Any]


def text(trace: Trace) -> str:
    """The file's content, with one event per line."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events(trace))
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'


def events(trace: Trace) -> Iterator[Event]:
    yield from _names(TOGETHER, trace.name, {TOKENS: "tokens", CRITICAL: "critical path", HANDOFFS: "hand-offs"})
    yield from _names(WORKERS, "workers", {worker: f"worker {worker}" for worker in range(trace.workers)})
    yield from _together(trace)
    for worker in range(trace.workers):
        yield from _of_worker(trace, worker)


def _names(process: int, name: str, tracks: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for track, label in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": label}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": track, "args": {"sort_index": track}}


def _together(trace: Trace) -> Iterator[Event]:
    """The tokens; the stages of the slowest worker (critical path); and the hand-offs, which last from the end of a
    stage until every worker has the input of the next one."""
    ends = trace.ended.max(1)
    waited = trace.stamps[1:, ..., 1].max(1) > 0  # stages without a stamp of when the input arrived have no hand-off
    arrived = trace.ready.max(1)
    for token in range(trace.tokens):
        begins = ends[token] - trace.critical[token]
        yield _slice("token", "token", (TOGETHER, TOKENS), begins[0], ends[token, -1], {"token": token})
        for index, stage in enumerate(trace.stages):
            where = {"token": token, "stage": index, "layer": getattr(stage, "layer", None)}
            begin, end = begins[index], ends[token, index]
            yield _slice(stage.name, "critical", (TOGETHER, CRITICAL), begin, end, where)
            if waited[token, index] and arrived[token, index] > begin:
                before = trace.stages[index - 1].name  # before the first stage: the last stage of the previous token
                name = f"{before} → {stage.name}"
                yield _slice(name, "hand-off", (TOGETHER, HANDOFFS), begin, arrived[token, index], where)


def _of_worker(trace: Trace, worker: int) -> Iterator[Event]:
    for token in range(trace.tokens):
        times = zip(*(when[token, worker].tolist() for when in (trace.began, trace.ready, trace.ended)), strict=True)
        for index, (stage, (began, ready, ended)) in enumerate(zip(trace.stages, times, strict=True)):
            where = {"token": token, "stage": index, "layer": getattr(stage, "layer", None)}
            if ready > began:
                yield _slice(f"wait: {stage.name}", "wait", (WORKERS, worker), began, ready, where)
            yield _slice(stage.name, "work", (WORKERS, worker), ready, ended, where)


def _slice(name: str, kind: str, track: tuple[int, int], begin: float, end: float, where: Event) -> Event:
    """A complete event (phase X); times in µs, rounded to 1 ns."""
    process, thread = track
    place: Event = {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": thread}
    return place | {"ts": round(float(begin), 3), "dur": round(float(end - begin), 3), "args": where}
