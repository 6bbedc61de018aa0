"""``monolane rm``."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A name or a hub id, as 'monolane models' lists it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model that was fetched from this machine."""
    from monolane.cache import human_size
    from monolane.model.fetch import fetched, remove

    paths, size = fetched(model)
    where = " and ".join(map(str, paths))
    if not yes:
        typer.confirm(f"Remove {model} ({human_size(size)}, {where})?", abort=True, err=True)
    remove(paths)
    typer.echo(f"Removed {model}: {human_size(size)} are free.", err=True)
