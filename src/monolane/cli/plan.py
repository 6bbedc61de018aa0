"""``monolane plan``: what a model would do on another machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from monolane.errors import UsageError


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A name (see --list), a folder with config.json, a .gguf file, or a hub id."
        ),
    ] = None,
    on: Annotated[str, typer.Option(metavar="MACHINE", help="One machine or several: H200, 8xMI300X, this.")] = "H200",
    lanes: Annotated[int | None, typer.Option(help="GPUs that share every layer. Default: all.")] = None,
    delay: Annotated[
        int | None, typer.Option(help="Modules by which other lanes are heard of late. Default: as trained.")
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="bf16, fp8, fp4; q8, q4, q4_k_m or a format, as Monolane streams them. Default: as published."
        ),
    ] = "published",
    context: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens in the cache, such as 512 or 32k. Default: 4k.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="kog: published projections beside ours, with explanations.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the machines and models that have a name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Say what a model's config promises on a machine: bytes per token, memory, roofline, predicted time, what binds.

    Nothing is run and no weights are fetched. The prediction is calibrated by measured runs; it has an
    error bar where all it rests on was measured.
    """
    from monolane.bench.measure.lengths import parse_length
    from monolane.planner import kog_report, listing, report
    from monolane.planner.calibration import read_results, results_folder
    from monolane.planner.here import place
    from monolane.planner.prediction import predict
    from monolane.planner.source import describe

    if (model is not None) + (table is not None) + show_list != 1:
        raise UsageError(
            "Exactly one of MODEL, --table and --list is needed.",
            "For example: monolane plan llama-3.1-8b --on 8xH200; monolane plan --list",
        )
    if show_list:
        typer.echo(json.dumps(listing.as_json()) if as_json else listing.text())
        return
    results = read_results(results_folder())
    if table is not None:
        if table != "kog":
            raise UsageError(f"There is no table {table!r}.", "There is one: --table kog.")
        typer.echo(json.dumps(kog_report.as_json(results)) if as_json else kog_report.text(results))
        return
    assert model is not None
    where = place(on, lanes)
    found = predict(
        describe(model),
        where.cluster,
        results,
        dtype=weights,
        context=None if context is None else parse_length(context, "--context"),
        delay=delay,
        measured=where.measured,
    )
    typer.echo(json.dumps(report.as_json(found)) if as_json else report.text(found))
