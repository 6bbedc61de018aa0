"""``monolane models``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from monolane.model.fetch import ModelEntry


def _state(entry: ModelEntry) -> str:
    if entry.path:
        return "fetched" if entry.ours else "bundled"
    if entry.partial_bytes:
        return f"{100 * entry.partial_bytes // max(1, entry.size_bytes)}% here"
    return "hub only" if entry.hub_only else ""


def models() -> None:
    """List the models with a name, and those already fetched, with what they take on the disk."""
    from monolane.cache import human_size
    from monolane.engine.default_model import default_model
    from monolane.model.fetch import describe_models

    entries = describe_models()
    chosen = default_model("auto", None).name
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = _state(entry)
        default = " (default here)" if entry.name == chosen else ""
        size = human_size(entry.size_bytes)
        typer.echo(f"{entry.name:{width}}  {size:>9}  {state:9}  {entry.description}{default}".rstrip())
    if total := sum(entry.size_bytes for entry in entries if entry.path and entry.ours):
        typer.echo(f"{human_size(total)} on this disk; 'monolane rm MODEL' frees what one takes.", err=True)
