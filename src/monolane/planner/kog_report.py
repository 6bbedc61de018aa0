"""The comparisons of ``kog`` as a table, and for every model an explanation of why the numbers differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monolane.planner import columns
from monolane.planner.calibration import Result
from monolane.planner.kog import COUNT, EFFECTIVE_SHARE, UTILISATION, Comparison, comparisons, nominal, verdict
from monolane.planner.latency import MICRO
from monolane.planner.report import error_bar

GIGA = 1e9
SAME = 0.05  # sizes that differ by a smaller share count as equal: sources count and round differently

_LEGEND = (
    "GB/token: active bytes, counted from the config. implied: the bytes that the published number is the formula of. "
    f"formula: {UTILISATION:.0%} x effective bandwidth / GB/token, effective being {EFFECTIVE_SHARE:.0%} of nominal "
    "(said of MI300X, assumed of H200). No cache is read. one GPU: what Monolane measured on a single one, in "
    "tokens per second; - not measured. * measured by its makers, not projected; ! its sources "
    "contradict each other; ~ machine not said."
)


def text(results: Sequence[Result]) -> str:
    found = comparisons(results)
    rows = [["model", "on", "GB/token", "implied", "published", "formula", "ours", "binds", "one GPU"]]
    rows += [_row(one) for model in found for one in model]
    return "\n".join(
        [
            f"Tokens per second as published, by the published formula, and by our latency model ({COUNT} lanes)",
            "",
            *columns.table(rows, left=2),
            "",
            columns.paragraph(_LEGEND),
            columns.paragraph(f"Error bar: {error_bar(found[-1][-1].ours)}."),
            "",
            *(columns.paragraph(f"{model[0].ours.model.name}: {explain(model)}", "  ") for model in found),
        ]
    )


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [
        {
            "model": one.published.model,
            "machine": f"{COUNT}x{one.node}",
            "published_tokens_per_second": one.speed,
            "published_elsewhere": one.published.elsewhere,
            "measured": one.published.measured,
            "bytes_per_token": one.active_bytes,
            "implied_bytes_per_token": one.implied_bytes,
            "formula_tokens_per_second": one.formula,
            "our_tokens_per_second": one.ours.tokens_per_s,
            "binds": one.ours.time.binds,
            "one_gpu_measured_tokens_per_second": one.one_gpu,
            "explanation": explain(model),
        }
        for model in comparisons(results)
        for one in model
    ]


def _row(one: Comparison) -> list[str]:
    published = one.published
    mark = "*" if published.measured else "!" if published.elsewhere else "~" if published.machine_unsaid else " "
    return [
        one.ours.model.name,
        f"{COUNT}x{one.node}",
        f"{one.active_bytes / GIGA:.2f}",
        f"{one.implied_bytes / GIGA:.2f}",
        f"{one.speed:,.0f} {mark}",
        f"{one.formula:,.0f}",
        f"{one.ours.tokens_per_s:,.0f}",
        one.ours.time.binds,
        "-" if one.one_gpu is None else f"{one.one_gpu:,.0f}",
    ]


def explain(rows: Sequence[Comparison]) -> str:
    """Why published speed, formula and our prediction differ, in sentences."""
    first = rows[0]
    about_bytes = _measured_sentence(rows) if first.published.measured else _bytes_sentence(rows)
    return " ".join(filter(None, (about_bytes, _contradiction(rows), *map(_latency_sentence, rows))))


def _bytes_sentence(rows: Sequence[Comparison]) -> str:
    """The bytes per token that the published speeds imply, and those that the config gives."""
    one = rows[0]
    implied = [row.implied_bytes / GIGA for row in rows]
    span = " to ".join(dict.fromkeys(f"{size:.1f}" for size in sorted(implied)))
    real, middle = one.active_bytes / GIGA, math.sqrt(math.prod(implied))
    if abs(real / middle - 1) < SAME:
        return f"the published numbers are the formula of {span} GB, and the config gives {real:.1f} GB: the same."
    largest = sorted(one.ours.footprint.rows, key=lambda row: -row.active)[:2]
    most = " and ".join(f"{row.active / GIGA:.1f} for {row.part}" for row in largest)
    count = one.published.active_billions
    return (
        f"the published numbers are the formula of {span} GB, which is {8 * middle / count:.1f} "
        f"bits for each of {count:g} B weights; the config gives {real:.1f} GB ({most}), "
        f"{abs(real / middle - 1):.0%} {'more' if real > middle else 'less'}, and the formula changes by as much."
    )


def _measured_sentence(rows: Sequence[Comparison]) -> str:
    reached = [f"{row.speed * row.active_bytes / nominal(row.node):.0%} on {row.node}" for row in rows]
    return (
        f"its makers measured it: {' and '.join(reached)} of the nominal bandwidth, where the formula has "
        f"{UTILISATION * EFFECTIVE_SHARE:.0%} for every machine."
    )


def _contradiction(rows: Sequence[Comparison]) -> str:
    found, published = verdict(rows), rows[0].published
    if found is None:
        return ""
    return (
        f"CONTRADICTION: one source has {_numbers(published.speeds)}, another about {published.elsewhere:,.0f}. If "
        f"every weight took {published.bits:g} bits, {found.format_bytes / GIGA:.1f} GB, the formula would give "
        f"{_numbers(found.by_format)}, which is nearer to {_numbers(found.format_supports)}; but the published "
        f"checkpoint is '{rows[0].ours.precision.name}', {rows[0].active_bytes / GIGA:.1f} GB, and with that it gives "
        f"{_numbers(found.by_config)}: the formula supports {_numbers(found.config_supports)}."
    )


def _latency_sentence(one: Comparison) -> str:
    """The time per token by the formula and by our latency model, which also counts hand-offs and exchanges."""
    time = one.ours.time
    waits = time.handoffs + time.exchanges
    ours, theirs = one.ours.tokens_per_s, one.formula
    pace = COUNT * one.ours.ceiling.bytes_per_s / nominal(one.node)
    way = "above" if ours > theirs else "below"
    return (
        f"On {one.node} ours is {way} the formula ({ours:,.0f} against {theirs:,.0f}): where that has "
        f"{MICRO / theirs:,.0f} µs for everything, ours has {time.us - waits:,.0f} for reading (at {pace:.0%} of "
        f"nominal, and what waiting does not hide) and {waits:,.0f} for {one.ours.model.shape.handoffs} hand-offs and "
        "exchanges."
    )


def _numbers(speeds: Sequence[float]) -> str:
    return " / ".join(f"{speed:,.0f}" for speed in speeds)
