"""``monolane inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import opening, options
from monolane.errors import UsageError


def inspect(
    model: options.ModelSpec = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="A model of this shape with made-up weights instead, such as gpt-oss-120b; "
            "--weights may then be q4_k_m, fp8, mxfp4+q8 or a format, too."
        ),
    ] = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
    weights: options.Weights = None,
    context: options.Context = None,
    card: Annotated[
        str | None,
        typer.Option(help="A GPU that is not here: h200, b200, rtx-5090, …", rich_help_panel=options.MACHINE),
    ] = None,
    picture: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture of the tapes goes (.svg, .png or .pdf).")
    ] = Path("plan.svg"),
) -> None:
    """Show a model's program: stages, bytes per stage and worker, hand-offs, balance; and draw its tapes.

    For cuda also the kernel, without a GPU: registers, shared memory, ring, and the time each stage should take.
    """
    from monolane.bench.measure.subject import find_model
    from monolane.cli.progress_bar import progress_bar
    from monolane.model.fetch import resolve
    from monolane.model.format import FormatOf
    from monolane.model.load import load_config_and_formats
    from monolane.program import inspect as program
    from monolane.program.shard import Shard
    from monolane.target.cuda import inspect as cuda
    from monolane.target.cuda.opening import unused_gpu
    from monolane.target.opening import DEVICES, choose_context, choose_lanes, plan_for

    if device not in DEVICES:
        raise UsageError(f"There is no device {device!r}.", f"Choose one of: {', '.join(DEVICES)}.")
    if shape is not None and model is not None:
        raise UsageError("A model and --shape were given.", "Choose one of the two.")
    progress = progress_bar()
    formats: FormatOf
    if shape is not None:
        _, made_up = find_model(None, shape, progress, weights)
        config, formats = made_up.config, made_up.weights.format
    else:
        spec = opening.named(model, device, workers, progress)
        config, formats = load_config_and_formats(resolve(spec, progress), weights, progress)
    device = "cuda" if card else device
    chosen = cuda.choose_card(device, workers, card)
    if chosen is None and device == "auto" and (line := unused_gpu(workers)) is not None:
        progress.note(line)
    length = choose_context(config.context, context)
    if chosen:
        plan = cuda.plan_for(config, chosen, choose_lanes(config, lanes), formats)
    else:
        plan = plan_for(config, workers, lanes=lanes, formats=formats)
    notes = Shard(config, plan.program.lanes).notes()
    parts = [program.report(plan, length, notes), *([cuda.report(plan, length, chosen)] if chosen else [])]
    typer.echo("\n\n".join(parts))
    program.picture(plan, picture)
    typer.echo(f"picture: {picture}", err=True)
