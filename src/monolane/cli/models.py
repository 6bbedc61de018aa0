"""``monolane models``."""

from __future__ import annotations

import typer


def models() -> None:
    """List the models with a name, and those already fetched."""
    from monolane.cache import human_size
    from monolane.engine.default_model import default_model
    from monolane.model.fetch import describe_models

    entries = describe_models()
    chosen = default_model("auto", None).name
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = "fetched" if entry.path else "hub only" if entry.hub_only else ""
        default = " (default here)" if entry.name == chosen else ""
        size = human_size(entry.size_bytes)
        typer.echo(f"{entry.name:{width}}  {size:>9}  {state:8}  {entry.description}{default}".rstrip())
