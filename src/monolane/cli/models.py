"""``monolane models``."""

from __future__ import annotations

import typer

from monolane.model.catalogue import DEFAULT_MODEL


def models() -> None:
    """List the models with a name, and those already fetched."""
    from monolane.cache import human_size
    from monolane.model.fetch import describe_models

    entries = describe_models()
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = "fetched" if entry.path else ""
        default = " (default)" if entry.name == DEFAULT_MODEL else ""
        size = human_size(entry.size_bytes)
        typer.echo(f"{entry.name:{width}}  {size:>9}  {state:7}  {entry.description}{default}".rstrip())
