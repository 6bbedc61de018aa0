"""A prediction as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from monolane.cache import human_size
from monolane.planner import columns, kog
from monolane.planner.calibration import EXPERTS, LOW_BIT, root_mean_square
from monolane.planner.footprint import CACHE, Row
from monolane.planner.lane_runs import exchanges
from monolane.planner.latency import BF16_BYTES, MICRO
from monolane.planner.parts import Part
from monolane.planner.precision import FORMATS
from monolane.planner.prediction import Prediction

_INDENT = 11
_METHOD = "leave-one-out by model"

_BINDS = {
    "weights": "reading them is the largest term; fewer bits per weight or more bandwidth would help most",
    "unpacking": "workers need longer for low-bit weights than memory; neither fewer bits nor bandwidth would help",
    "cache": "reading it is the largest term; a shorter context or more bandwidth would help most",
    "hand-offs": "waiting for them is the largest term; more bandwidth or more lanes would hardly help",
    "exchanges": "waiting for other lanes is the largest term; fewer lanes or a delay would help most",
}


def text(plan: Prediction) -> str:
    """The whole report."""
    lanes = f"{plan.lanes.count} lane" + ("s" if plan.lanes.count > 1 else "")
    unused = plan.cluster.count - plan.lanes.count
    idle = f" ({unused} of the {plan.cluster.count} GPUs unused)" if unused else ""
    delay = f", delay {plan.lanes.delay}" if plan.lanes.delay else ""
    heading = (
        f"{plan.model.name} on {plan.cluster.name}: {lanes}{idle}{delay}, {plan.precision.name}, "
        f"context {plan.context:,}"
    )
    return "\n".join(
        [
            heading,
            "",
            *_parts(plan),
            "",
            _line("memory", _memory(plan)),
            _line("roofline", _roofline(plan)),
            _line("predicted", _predicted(plan)),
            *_terms(plan),
            *_published(plan),
            _line("binds", f"{plan.time.binds}: {_BINDS[plan.time.binds]}"),
            _line("error bar", error_bar(plan)),
            *_assumptions(plan),
        ]
    )


def _line(label: str, content: str) -> str:
    return columns.labelled(label, content, _INDENT)


def _parts(plan: Prediction) -> list[str]:
    total = plan.footprint.total
    rows = [["part", "parameters", "bits", "in memory", "per token", "per token and lane", "share"]]
    for row in (*plan.footprint.rows, total):
        rows.append(
            [
                row.part,
                columns.count(row.parameters),
                "-" if (bits := _bits_of(plan, row)) is None else f"{bits:.3g}",
                human_size(round(row.held)) if row.held else "-",
                human_size(round(row.active)),
                human_size(round(row.lane_active)),
                f"{row.lane_active / total.lane_active:.1%}",
            ]
        )
    return columns.table(rows)


def _bits_of(plan: Prediction, row: Row) -> float | None:
    """Bits per weight; in total those of the weights that a token reads."""
    if row.part == CACHE:
        return None
    total, cache = plan.footprint.total, plan.footprint.cache
    if row.part == total.part:
        return 8 * (total.active - cache.active) / plan.model.shape.active_parameters
    return plan.precision.bits_of(Part(row.part))


def _published(plan: Prediction) -> list[str]:
    """What others have published of the same model on the same machine."""
    speed = kog.published_speed(plan)
    if speed is None:
        return []
    how = "measured" if speed.measured else "projected"
    return [
        _line(
            "published",
            f"{speed.tokens_per_s:,.0f} tok/s, {how} by the makers of another engine; the prediction is "
            f"{plan.tokens_per_s / speed.tokens_per_s:.1f} times that",
        )
    ]


def _memory(plan: Prediction) -> str:
    total, cache, machine = plan.footprint.total, plan.footprint.cache, plan.cluster.machine
    held, weights = total.lane_held, total.lane_held - cache.lane_held
    return (
        f"{human_size(round(held))} a lane ({human_size(round(weights))} weights, {human_size(round(cache.lane_held))} "
        f"cache) of {human_size(round(machine.room))}: fits, {held / machine.room:.0%} full"
    )


def _roofline(plan: Prediction) -> str:
    ways = []
    if plan.cluster.machine.bandwidth is not None:
        ways.append((plan.cluster.machine.bandwidth, "nominal"))
    ways.append((plan.ceiling.bytes_per_s, f"ceiling, {plan.ceiling.source}"))
    return "; ".join(
        f"{columns.duration(us)} = {MICRO / us:,.0f} tok/s at {columns.speed(speed)} ({what})"
        for speed, what in ways
        for us in [plan.roofline_us(speed)]
    )


def _predicted(plan: Prediction) -> str:
    within = plan.tokens_per_s_range
    span = f", {within[0]:,.0f} to {within[1]:,.0f} within the error bar" if within else ""
    share = plan.roofline_us(plan.ceiling.bytes_per_s) / plan.time.us
    spread = f" ± {plan.error:.0%}" if plan.error is not None else ""
    speed = f"{columns.duration(plan.time.us)} per token{spread} = {plan.tokens_per_s:,.0f} tok/s"
    return f"{speed}{span}; {share:.0%} of the ceiling's roofline"


def _terms(plan: Prediction) -> list[str]:
    """The terms of the predicted time. A term that is hidden behind others is 0."""
    latencies, lanes = plan.calibration.latencies, plan.lanes
    each = f"{latencies.handoff_us:.2f} µs, {latencies.pause_us:.2f} where hidden"
    notes = {
        "weights": "where they are not hidden behind hand-offs",
        "unpacking": "of low-bit weights, where memory waits for the workers",
        "cache": f"at {latencies.cache_efficiency:.0%} of the ceiling",
        "hand-offs": f"{plan.model.shape.handoffs} of {each}{_choices(plan)}",
        "exchanges": f"{exchanges(plan.model.shape)} of {lanes.exchange_us:.1f} µs"
        + (f", due {lanes.delay} modules later" if lanes.delay else ""),
    }
    hidden = {"exchanges": lanes.count == 1, "unpacking": not plan.has_low_bit}
    terms = {name: us for name, us in plan.time.terms().items() if not hidden.get(name)}
    rows = [[name, columns.duration(us), f"{us / plan.time.us:.0%}", notes[name]] for name, us in terms.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{'':{_INDENT}}{name:{widths[0]}}  {us:>{widths[1]}}  {part:>{widths[2]}}  {note}"
        for name, us, part, note in rows
    ]


def _choices(plan: Prediction) -> str:
    routers = sum(count for layer, count in plan.model.shape.kinds if layer.ffn.blind)
    return f"; {routers} routers, {plan.calibration.latencies.router_us:.1f} µs more" if routers else ""


def error_bar(plan: Prediction) -> str:
    """The error bar, how it was estimated, and what it does not cover."""
    calibration = plan.calibration
    if not calibration.results:
        return "none: there is no measured result to compare with, so the latencies are those of early probes"
    covered = plan.traits & calibration.covered
    errors = calibration.comparable(covered)
    models = len({each.result.model for each in errors})
    common = covered.intersection(*(each.result.traits for each in errors))
    alike = f" with {_and(sorted(common))}" if common else ""
    method = f"{_METHOD}, over {len(errors)} measured time(s) of {models} model(s){alike} on {calibration.from_machine}"
    if plan.uncovered:
        return f"none: the ± {root_mean_square(errors):.0%} of {method}, do not cover {_and(plan.uncovered)}"
    lanes = plan.lanes_error
    if lanes is None:
        return f"± {plan.error:.0%}, {method}"
    return (
        f"± {plan.error:.0%}: ± {root_mean_square(errors):.0%}, {method}; {lanes.unexplained_us:.0f} µs that lanes on "
        f"one GPU took more or less than predicted; and {lanes.wire_us:.0f} µs if {_wire(plan)} took twice as long as "
        "assumed"
    )


def _wire(plan: Prediction) -> str:
    wire = plan.cluster.machine.wire
    return wire.name if wire else "the wire"


def assumptions(plan: Prediction) -> dict[str, str]:
    """Everything that is neither measured nor published: subject -> why it is assumed."""
    found = {f"{plan.model.name}: {key}": why for key, why in plan.model.assumed.items()}
    machine = plan.cluster.machine
    if plan.ceiling.source == "assumed":
        found[f"{machine.name}: ceiling"] = machine.assumed["ceiling"]
    if plan.lanes.count > 1:
        found[f"{machine.name}: exchange"] = plan.exchange.source
    if "machine" in machine.assumed:
        found[machine.name] = machine.assumed["machine"]
    if plan.lanes.delay and not plan.model.delay:
        found["delay"] = "the model would have to be trained for it; untrained, it answers nonsense"
    if plan.precision.name in FORMATS and plan.has_low_bit:
        found["weights"] = "head, router and embedding stay bf16"
    latencies, unseen = plan.calibration.latencies, plan.traits - plan.calibration.covered
    if LOW_BIT in unseen:
        per_s = latencies.unpacking * plan.ceiling.bytes_per_s / BF16_BYTES
        found["low-bit weights"] = (
            f"{per_s / 1e12:.2g} T weights/s are unpacked, by a probe; no run of a model shows it"
        )
    if EXPERTS in unseen:
        found["experts"] = f"{latencies.router_us:.1f} µs for the choice in a layer; no run of a model shows it"
    return found


def _assumptions(plan: Prediction) -> list[str]:
    found = assumptions(plan)
    labels = ["assumed", *[""] * (len(found) - 1)]
    return [_line(label, f"{about}: {why}") for label, (about, why) in zip(labels, found.items(), strict=False)]


def as_json(plan: Prediction) -> dict[str, Any]:
    machine = plan.cluster.machine
    return {
        "model": plan.model.name,
        "machine": {"name": machine.name, "count": plan.cluster.count, "memory_bytes": machine.memory},
        "lanes": plan.lanes.count,
        "delay": plan.lanes.delay,
        "exchange_us": plan.exchange.us if plan.lanes.count > 1 else None,
        "exchange_source": plan.exchange.source if plan.lanes.count > 1 else None,
        "dtype": plan.precision.name,
        "context": plan.context,
        "parts": [asdict(row) | {"bits": _bits_of(plan, row)} for row in plan.footprint.rows],
        "parameters": plan.model.shape.parameters,
        "active_parameters": plan.model.shape.active_parameters,
        "bytes_per_token": plan.footprint.total.active,
        "memory_bytes": plan.footprint.total.held,
        "lane_memory_bytes": plan.footprint.total.lane_held,
        "nominal_bytes_per_s": machine.bandwidth,
        "ceiling_bytes_per_s": plan.ceiling.bytes_per_s,
        "ceiling_source": plan.ceiling.source,
        "roofline_us": plan.roofline_us(plan.ceiling.bytes_per_s),
        "us_per_token": plan.time.us,
        "tokens_per_second": plan.tokens_per_s,
        "terms_us": plan.time.terms(),
        "binds": plan.time.binds,
        "error": plan.error,
        "error_method": error_bar(plan),
        "published_tokens_per_second": speed.tokens_per_s if (speed := kog.published_speed(plan)) else None,
        "latencies": asdict(plan.calibration.latencies),
        "assumed": assumptions(plan),
    }


def _and(things: list[str]) -> str:
    return things[0] if len(things) == 1 else f"{', '.join(things[:-1])} and {things[-1]}"
