"""The names that the models of a server go by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from monolane.errors import UsageError
from monolane.model.fetch import models_in


def named(models: Sequence[str], chosen: str | None) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Name -> what the user wrote, for each model, and the further names of each. A path goes by its last part.
    ``chosen``: names for a single model, between commas."""
    specs = [spec for model in models for spec in models_in(model)]
    if chosen:
        if len(specs) > 1:
            raise UsageError(
                f"--served-model-name is given, and there are {len(specs)} models.",
                "Leave it out: each goes by its own name.",
            )
        name, *aliases = chosen.split(",")
        return {name: specs[0]}, {name: aliases}
    found: dict[str, str] = {}
    for spec in specs:
        name = Path(spec).name if Path(spec).exists() else spec
        if name in found:
            raise UsageError(f"Two models go by the name {name!r}: {found[name]} and {spec}.", "Rename one of them.")
        found[name] = spec
    return found, {}
