"""``monolane trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import opening, options
from monolane.errors import UsageError


def trace(
    model: options.ModelSpec = None,
    shape: Annotated[
        str | None, typer.Option(help="A model of this shape with made-up weights instead, such as llama-3.2-1b.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to trace.")] = 8,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the trace goes (.json); open it in ui.perfetto.dev.")
    ] = Path("trace.json"),
    picture: Annotated[Path, typer.Option(metavar="FILE", help="Where the picture of it goes (.svg).")] = Path(
        "trace.svg"
    ),
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
) -> None:
    """Show where the time of a token goes: when every worker waited and worked, stage by stage; and draw it."""
    from monolane.bench.measure import subject
    from monolane.bench.trace import run as trace_run
    from monolane.cli.progress_bar import progress_bar

    if shape is not None and model is not None:
        raise UsageError("A model and --shape were given.", "Choose one of the two.")
    chosen = trace_run.Options(tokens, device, workers, out, picture, lanes)
    progress = progress_bar()
    if shape is not None:
        _, made_up = subject.find_model(None, shape, progress)
        typer.echo(trace_run.run(shape, made_up.config, made_up.weights, chosen, progress))
    else:
        from monolane.model.fetch import resolve
        from monolane.model.load import load_model

        spec = opening.named(model, device, workers, progress)
        found = load_model(resolve(spec, progress), progress)
        typer.echo(trace_run.run(found.name, found.config, found.weights, chosen, progress))
    typer.echo(f"trace: {out}\npicture: {picture}", err=True)
