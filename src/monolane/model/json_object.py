"""Reads JSON objects from untrusted files: bounded in size, and without duplicate keys."""

from __future__ import annotations

import json
from pathlib import Path

from monolane.errors import ModelFileError
from monolane.model.data_file import DataFile

# Bytes. An index of 100,000 tensors is about 10 MB; a config a few kB.
_LIMIT = 64 << 20


def parse_json_object(data: bytes, source: str) -> dict[str, object]:
    """The JSON object in ``data``; ``source`` names it in messages."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source} is not valid JSON: {error}.", "The file is damaged; fetch it again.") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{source} should be a JSON object.", "The file is damaged; fetch it again.")
    return value


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file."""
    with DataFile(path) as file:
        if file.size > _LIMIT:
            raise ModelFileError(
                f"{path} has {file.size} bytes, too many for a file of its kind.", "Is it the right one?"
            )
        return parse_json_object(file.read(0, file.size), str(path))


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the same key is there twice")
    return result
