"""Output paths that a user gives. They are checked before anything is measured."""

from __future__ import annotations

from pathlib import Path

from monolane.cache import atomic_write
from monolane.errors import ResourceError, UsageError


def check(path: Path | None, example: str) -> None:
    """Refuse a path without the suffix of ``example``, in a folder that does not exist, or that is itself a folder."""
    if path is None:
        return
    ending = Path(example).suffix
    if path.suffix.lower() != ending:
        raise UsageError(f"{path} does not end in {ending}.", f"Choose a name such as {example}.")
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"{path} is no place for a file.", "Choose a file in a folder that exists.")


def write(path: Path, data: str | bytes) -> None:
    """Write all of it, or nothing."""
    try:
        with atomic_write(path) as file:
            file.write(data.encode() if isinstance(data, str) else data)
    except (OSError, ResourceError) as error:
        raise ResourceError(f"{path} cannot be written.", "Choose a file in a folder you can write to.") from error
