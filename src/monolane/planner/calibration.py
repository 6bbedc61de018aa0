"""Fits the latencies of a machine to measured decode times, and estimates the error of the latency model.

The fit starts from a prior, the values that probes measured before there was a kernel, and their uncertainty. Every
result adds a term to the cost that the fit minimises. So the fit works with no result at all, with one, and with many.
The error bar is a leave-one-out error: each model in turn is predicted by a fit to the results of all other models, and
the error is the root mean square of the relative errors, of the results that have in common with a plan what makes it
harder to predict: low-bit weights, experts, lanes of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from statistics import median

from monolane.bench.ceiling.measured_exchanges import MeasuredExchanges, of_result
from monolane.bench.ceiling.result import idle_handoff_us
from monolane.bench.measure.routing import SKEWED
from monolane.bench.report.record import RESULTS, cpu_title
from monolane.model.settings import Settings
from monolane.planner import lane_runs as lane_runs_of
from monolane.planner import low_bit
from monolane.planner.catalogue import CATALOGUE
from monolane.planner.lane_runs import LaneRun
from monolane.planner.latency import Lanes, Latencies, Step, steps, token_time
from monolane.planner.machines import Kind, Machine, known_gpu
from monolane.planner.source import from_entry
from monolane.target.cuda.predict import HANDOFF_US, PAUSE_US

# What a plan or a result may have that others have not.
LOW_BIT, EXPERTS, OWN_LANES = "weights other than bf16", "experts", "lanes of the model's own"

# Prior latencies, and the standard deviation of the logarithm of each.
_PRIORS: dict[Kind, tuple[Latencies, Latencies]] = {
    "gpu": (Latencies(HANDOFF_US, PAUSE_US / HANDOFF_US, 1.0, 1.0, 3.0, 3.0), Latencies(0.3, 0.6, 0.1, 0.5, 0.5, 1.0)),
    "cpu": (Latencies(2.0, 0.5, 0.85, 0.85, 2.5, 1.0), Latencies(1.0, 0.5, 0.2, 0.5, 0.5, 1.0)),
}
# Likewise of a measured time. Runs of the same code on the same machine differ by 3%. Of low-bit weights and experts
# the model knows less, so they must not pull at what other results say about hand-offs.
_RESULT_SPREAD, _TRAITS_SPREAD = 0.03, 0.1
_NAMES = tuple(field.name for field in fields(Latencies))
_VALUES = attrgetter(*_NAMES)
_SHARES = ("leak", "efficiency", "cache_efficiency")  # latencies that are shares, and so at most 1
_ROUNDS, _FIRST_STRIDE = 24, 0.4  # of the search; a stride is a difference of logarithms


@dataclass(frozen=True)
class Result:
    """One measured time per token, and what the latency model needs to predict it."""

    source: str  # the name of its file
    model: str
    machine: str
    kind: Kind
    ceiling: float  # bytes per second, measured in the same run
    work: tuple[Step, ...]
    us: float
    dtype: str = "bf16"
    own_lanes: bool = False
    # As ``monolane ceiling`` measured them on that machine; None: no such result.
    handoff_us: float | None = None
    exchanges: MeasuredExchanges | None = None
    lane_runs: tuple[LaneRun, ...] = ()  # on that machine, of any model

    @property
    def traits(self) -> frozenset[str]:
        found = {
            LOW_BIT: any(step.low_bit for step in self.work),
            EXPERTS: any(step.blind for step in self.work),
            OWN_LANES: self.own_lanes,
        }
        return frozenset(trait for trait, has in found.items() if has)

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the logarithm of the time."""
        return _TRAITS_SPREAD if self.traits else _RESULT_SPREAD


@dataclass(frozen=True)
class LeftOut:
    """The relative error of a prediction by a fit to the results of other models."""

    result: Result
    error: float


@dataclass(frozen=True)
class Calibration:
    """Latencies fitted to ``results``, which may be those of another machine."""

    latencies: Latencies
    left_out: tuple[LeftOut, ...]  # one for each of the results
    from_machine: str | None  # that the results were measured on
    # Hand-off time on the machine of the prediction / on ``from_machine``, where these differ and both are measured.
    carried: float | None = None

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(each.result for each in self.left_out)

    @property
    def error(self) -> float | None:
        """Of all results; None where there are none."""
        return root_mean_square(self.left_out)

    @property
    def covered(self) -> frozenset[str]:
        """The traits that some result has."""
        return frozenset().union(*(result.traits for result in self.results))

    def comparable(self, traits: frozenset[str]) -> tuple[LeftOut, ...]:
        """The errors for a plan with these traits: those of the results with the trait that has the largest error; for
        a plan without traits, those of the results without any, or else all."""
        if not traits:
            return tuple(each for each in self.left_out if not each.result.traits) or self.left_out
        groups = [tuple(each for each in self.left_out if trait in each.result.traits) for trait in traits]
        return max(groups, key=lambda group: root_mean_square(group) or 0.0)


def results_folder() -> Path:
    """benchmarks/results in the current folder, or else in the checkout that this file belongs to."""
    return RESULTS if RESULTS.is_dir() else Path(__file__).parents[3] / RESULTS


def read_results(folder: Path) -> list[Result]:
    """All decode times of models that the planner knows. Other files are ignored."""
    found: list[Result] = []
    ceilings: dict[str, tuple[float | None, MeasuredExchanges | None]] = {}
    lane_runs: dict[str, tuple[LaneRun, ...]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):  # ``make report`` complains about such files
            continue
        if isinstance(content, dict):
            found += _results_of(path.name, content)
            machine, entry = _machine_of(content), CATALOGUE.get(str(content.get("model")))
            if content.get("benchmark") == "ceiling" and machine is not None:
                ceilings[machine[0]] = idle_handoff_us(content), of_result(content)
            if content.get("benchmark") == "delays" and machine is not None and entry is not None:
                runs = tuple(lane_runs_of.of_result(content, from_entry(entry).shape))
                lane_runs[machine[0]] = lane_runs.get(machine[0], ()) + runs
    measured = [ceilings.get(result.machine, (None, None)) for result in found]
    return [
        replace(result, handoff_us=handoff_us, exchanges=exchanges, lane_runs=lane_runs.get(result.machine, ()))
        for result, (handoff_us, exchanges) in zip(found, measured, strict=True)
    ]


def _results_of(name: str, content: dict[str, object]) -> Iterator[Result]:
    entry, dtype = CATALOGUE.get(str(content.get("model"))), content.get("dtype")
    machine = _machine_of(content)
    ceiling = _positive(content.get("ceiling_bytes_per_s"))
    if entry is None or not isinstance(dtype, str) or machine is None or ceiling is None:
        return
    if content.get("routing") == SKEWED:  # as many bytes as with even routing, which has a result of its own
        return
    described, size = from_entry(entry), _positive(content.get("bytes_per_token"))
    if dtype in low_bit.NAMES:
        precision = described.precision(dtype)
    elif size is not None:
        precision = low_bit.streamed(dtype, size, described.shape)
    else:
        return
    for context, us in _times(content):
        work = steps(described.shape, precision, context, Lanes())
        yield Result(name, entry.name, *machine, ceiling, work, us, dtype, described.delay > 0)


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
    """Calibrate with this machine's own results, or else with those of the machine of its kind that has the most.

    ``handoff_us`` is the hand-off time that ``monolane ceiling`` measured on this machine. It scales the hand-off time
    that was fitted to another machine's results.
    """
    same_kind = [result for result in results if result.kind == machine.kind]
    used = [result for result in same_kind if result.machine == machine.name]
    if not used and same_kind:
        names = [result.machine for result in same_kind]
        most = max(dict.fromkeys(names), key=names.count)
        used = [result for result in same_kind if result.machine == most]
    found = _calibrated(machine.kind, tuple(used))
    other_handoff_us = used[0].handoff_us if used and used[0].machine != machine.name else None
    if handoff_us is None or other_handoff_us is None:
        return found
    factor = handoff_us / other_handoff_us
    return replace(
        found, carried=factor, latencies=replace(found.latencies, handoff_us=factor * found.latencies.handoff_us)
    )


@lru_cache(maxsize=8)  # a table needs the same calibration for every row
def _calibrated(kind: Kind, results: tuple[Result, ...]) -> Calibration:
    machine = results[0].machine if results else None
    return Calibration(fit(results, kind), tuple(_left_out(results, kind)), machine)


def measured_ceiling(machine: Machine, results: Sequence[Result]) -> float | None:
    """The median of the read ceilings measured with the results, in bytes per second."""
    found = {result.source: result.ceiling for result in results if result.machine == machine.name}
    return median(found.values()) if found else None


def measured_exchanges(machine: Machine, results: Sequence[Result]) -> MeasuredExchanges | None:
    return next((result.exchanges for result in results if result.machine == machine.name), None)


def measured_lane_runs(machine: Machine, results: Sequence[Result]) -> tuple[LaneRun, ...]:
    return next((result.lane_runs for result in results if result.machine == machine.name), ())


def predicted_us(result: Result, latencies: Latencies) -> float:
    return token_time(result.work, result.ceiling, latencies).us


def fit(results: Sequence[Result], kind: Kind) -> Latencies:
    """The latencies of least cost, found by coordinate descent with a stride that is halved when no step helps."""
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
    """The sum of squared deviations from the prior and from the results, each in standard deviations."""
    numbers = zip(*(_VALUES(numbers) for numbers in (tried, *_PRIORS[kind])), strict=True)
    from_prior = [math.log(value / prior) / spread for value, prior, spread in numbers]
    from_results = [math.log(predicted_us(result, tried) / result.us) / result.spread for result in results]
    return math.fsum(deviation * deviation for deviation in (*from_prior, *from_results))


def _left_out(results: Sequence[Result], kind: Kind) -> Iterator[LeftOut]:
    """A whole model is left out at a time, because the results of one model are alike."""
    for model in dict.fromkeys(result.model for result in results):
        latencies = fit([result for result in results if result.model != model], kind)
        for result in results:
            if result.model == model:
                yield LeftOut(result, predicted_us(result, latencies) / result.us - 1)


def root_mean_square(errors: Sequence[LeftOut]) -> float | None:
    """None where there are no errors."""
    return math.sqrt(sum(each.error**2 for each in errors) / len(errors)) if errors else None
