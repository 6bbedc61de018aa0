"""``monolane ceiling``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ceiling(
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.", envvar="MONOLANE_DEVICE")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the result goes (.json).")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Where a picture of it goes (.svg).")] = None,
) -> None:
    """Measure what this machine really gives: reading memory, hand-offs, barriers, launches.

    The result is kept: other commands hold their speeds against it.
    """
    from monolane.bench.ceiling import run as ceiling_run

    result = ceiling_run.run(ceiling_run.Options(device, out, picture), lambda text: typer.echo(text, err=True))
    typer.echo(ceiling_run.shown(result, as_json))
