"""``monolane pull``."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(model: Annotated[str, typer.Argument(metavar="MODEL", help="A name or a hub id.")]) -> None:
    """Fetch a model, and print where it lies."""
    from monolane.cli.progress_bar import progress_bar
    from monolane.model.fetch import resolve

    typer.echo(resolve(model, progress_bar()))
