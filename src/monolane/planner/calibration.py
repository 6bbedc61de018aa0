"""What measured runs say about a machine's latencies, and how far off the model would have been about each of them.

The fit begins with what probes had measured before there was a kernel, and how sure that was; every result pulls it its
way. So it works with no result at all, with one, and with many. The error bar is what a fit that has seen no result of
a model gets wrong about that model: the root of the mean square of the relative errors, each model left out in turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from statistics import median

from monolane.bench.ceiling.result import idle_handoff_us
from monolane.bench.report.record import RESULTS, cpu_title
from monolane.model.settings import Settings
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.latency import Lanes, Latencies, Step, steps, token_time
from monolane.planner.machines import Kind, Machine, known_gpu
from monolane.planner.precision import FORMATS, named
from monolane.planner.source import from_entry
from monolane.target.cuda.predict import HANDOFF_US, PAUSE_US

# Before any result, and how far each number may well be off, as a factor's logarithm.
_PRIORS: dict[Kind, tuple[Latencies, Latencies]] = {
    "gpu": (Latencies(HANDOFF_US, PAUSE_US / HANDOFF_US, 1.0, 1.0), Latencies(0.3, 0.6, 0.1, 0.5)),
    "cpu": (Latencies(2.0, 0.5, 0.85, 0.85), Latencies(1.0, 0.5, 0.2, 0.5)),
}
_RESULT_SPREAD = 0.03  # what a result is off by, likewise: runs of the same code on the same machine
_NAMES = tuple(field.name for field in fields(Latencies))
_VALUES = attrgetter(*_NAMES)
_SHARES = ("leak", "efficiency", "cache_efficiency")  # at most 1
_ROUNDS, _FIRST_STRIDE = 24, 0.4


@dataclass(frozen=True)
class Result:
    """One measured time, with what the model needs to predict it. ``ceiling``: as measured in the same run.

    ``handoff_us``: what ``monolane ceiling`` found on that machine, where its result is kept, too.
    """

    source: str
    model: str
    machine: str
    kind: Kind
    ceiling: float
    work: tuple[Step, ...]
    us: float
    handoff_us: float | None = None


@dataclass(frozen=True)
class Calibration:
    """``error`` is relative; None where there is nothing to hold the model against. ``from_machine``: whose results.

    ``carried``: the factor by which hand-offs here are longer than there, where the results are another machine's.
    """

    latencies: Latencies
    error: float | None
    results: tuple[Result, ...]
    from_machine: str | None
    carried: float | None = None


def results_folder() -> Path:
    """Where the current folder keeps results; or else the folder this program lies in, where it is a checkout."""
    return RESULTS if RESULTS.is_dir() else Path(__file__).parents[3] / RESULTS


def read_results(folder: Path) -> list[Result]:
    """All results the model can be held against: decode times of models it knows. Others are passed over."""
    found: list[Result] = []
    handoffs: dict[str, float | None] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):  # not ours to complain about here: a report checks them
            continue
        if isinstance(content, dict):
            found += _results_of(path.name, content)
            if content.get("benchmark") == "ceiling" and (machine := _machine_of(content)) is not None:
                handoffs[machine[0]] = idle_handoff_us(content)
    return [replace(result, handoff_us=handoffs.get(result.machine)) for result in found]


def _results_of(name: str, content: dict[str, object]) -> Iterator[Result]:
    entry, dtype = CATALOGUE.get(str(content.get("model"))), content.get("dtype")
    machine = _machine_of(content)
    ceiling = _positive(content.get("ceiling_bytes_per_s"))
    if entry is None or dtype not in FORMATS or machine is None or ceiling is None:
        return
    shape, precision = from_entry(entry).shape, named(str(dtype))
    for context, us in _times(content):
        work = steps(shape, precision, context, Lanes())
        yield Result(name, entry.name, *machine, ceiling, work, us)


def _times(content: dict[str, object]) -> Iterator[tuple[int, float]]:
    """(tokens in the cache, µs per token) of a decode result or of each point of a context sweep."""
    if content.get("benchmark") == "decode":
        prompt, tokens, us = (_positive(content.get(key)) for key in ("prompt_tokens", "tokens", "us_per_token"))
        if prompt and tokens and us:
            yield int(prompt + tokens / 2), us
    points = content.get("points")
    if content.get("benchmark") == "context" and isinstance(points, list):
        for point in points:
            settings = Settings(point if isinstance(point, dict) else {}, "")
            context, us = settings.get("context"), _positive(settings.get("us_per_token"))
            if isinstance(context, int) and context >= 0 and us:
                yield context, us


def _machine_of(content: dict[str, object]) -> tuple[str, Kind] | None:
    machine = content.get("machine")
    if not isinstance(machine, dict):
        return None
    if "gpu" not in machine:
        return cpu_title(machine.get("processor"), machine.get("cores")), "cpu"
    name = machine["gpu"].get("name") if isinstance(machine["gpu"], dict) else None
    known = known_gpu(str(name))
    return (known.name, known.kind) if known else None


def _positive(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if usable and isinstance(value, int | float) else None


def calibrate(machine: Machine, results: Sequence[Result], handoff_us: float | None = None) -> Calibration:
    """By this machine's own results; where there are none, by those of the machine of its kind with the most.

    ``handoff_us`` is what ``monolane ceiling`` found here: it makes another machine's hand-offs longer or shorter.
    """
    alike = [result for result in results if result.kind == machine.kind]
    own = [result for result in alike if result.machine == machine.name]
    if not own and alike:
        names = [result.machine for result in alike]
        most = max(dict.fromkeys(names), key=names.count)
        own = [result for result in alike if result.machine == most]
    found = _calibrated(machine.kind, tuple(own))
    there = own[0].handoff_us if own and own[0].machine != machine.name else None
    if handoff_us is None or there is None:
        return found
    factor = handoff_us / there
    return replace(
        found, carried=factor, latencies=replace(found.latencies, handoff_us=factor * found.latencies.handoff_us)
    )


@lru_cache(maxsize=8)  # a table asks for the same again and again
def _calibrated(kind: Kind, results: tuple[Result, ...]) -> Calibration:
    whose = results[0].machine if results else None
    return Calibration(fit(results, kind), _left_out_error(results, kind), results, whose)


def measured_ceiling(machine: Machine, results: Sequence[Result]) -> float | None:
    """The median of the read ceilings measured with the results, in bytes per second."""
    found = {result.source: result.ceiling for result in results if result.machine == machine.name}
    return median(found.values()) if found else None


def predicted_us(result: Result, latencies: Latencies) -> float:
    return token_time(result.work, result.ceiling, latencies).us


def fit(results: Sequence[Result], kind: Kind) -> Latencies:
    """The likeliest latencies: a search along one of them at a time, in ever smaller strides."""
    best, _ = _PRIORS[kind]
    best_cost, stride = _cost(best, results, kind), _FIRST_STRIDE
    for _ in range(_ROUNDS):
        moved = False
        for name in _NAMES:
            for factor in (math.exp(stride), math.exp(-stride)):
                value = getattr(best, name) * factor
                tried = replace(best, **{name: min(value, 1.0) if name in _SHARES else value})
                cost = _cost(tried, results, kind)
                if cost < best_cost:
                    best, best_cost, moved = tried, cost, True
        stride = stride if moved else stride / 2
    return best


def _cost(tried: Latencies, results: Sequence[Result], kind: Kind) -> float:
    numbers = zip(*(_VALUES(numbers) for numbers in (tried, *_PRIORS[kind])), strict=True)
    pulls = [math.log(value / prior) / spread for value, prior, spread in numbers]
    misses = [math.log(predicted_us(result, tried) / result.us) / _RESULT_SPREAD for result in results]
    return math.fsum(off * off for off in (*pulls, *misses))


def _left_out_error(results: Sequence[Result], kind: Kind) -> float | None:
    """Leave-one-out, by model: results of one model know too much of each other."""
    if not results:
        return None
    squares = []
    for model in dict.fromkeys(result.model for result in results):
        latencies = fit([result for result in results if result.model != model], kind)
        left_out = [result for result in results if result.model == model]
        squares += [(predicted_us(result, latencies) / result.us - 1) ** 2 for result in left_out]
    return math.sqrt(sum(squares) / len(squares))
