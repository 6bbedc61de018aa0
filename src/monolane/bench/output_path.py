"""Files that a user asks for by name: a name that cannot be is found before anything is measured."""

from __future__ import annotations

from pathlib import Path

from monolane.cache import atomic_write
from monolane.errors import ResourceError, UsageError


def check(path: Path | None, example: str) -> None:
    """Refuse a name that does not end as the example does, or lies in no folder."""
    if path is None:
        return
    ending = Path(example).suffix
    if path.suffix.lower() != ending:
        raise UsageError(f"{path} does not end in {ending}.", f"Choose a name such as {example}.")
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"{path} is no place for a file.", "Choose a file in a folder that exists.")


def write(path: Path, text: str) -> None:
    """The whole of it, or nothing."""
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except (OSError, ResourceError) as error:
        raise ResourceError(f"{path} cannot be written.", "Choose a file in a folder you can write to.") from error
