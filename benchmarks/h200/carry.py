"""Bring real models to a machine without a network, in pieces of bounded size, through a folder of the repository.

    python benchmarks/h200/carry.py pack smollm2-135m     # here: .carry/parts/*, and the gguf package in .carry/python
    python benchmarks/h200/carry.py take                  # there, after every piece: into the cache, joined when whole

Pieces may arrive in any order and one by one: what has arrived is moved to the cache. A model appears in the cache only
when its hash is the catalogue's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from monolane.cache import cache_folder, sha256_of
from monolane.model.catalogue import CATALOGUE, NamedModel
from monolane.model.fetch import resolve

CARRY = Path(".carry")
PARTS, PACKAGES = CARRY / "parts", CARRY / "python"
PART_BYTES = 48 << 20
MODELS = {name: model for name, model in CATALOGUE.items() if isinstance(model, NamedModel)}  # the others are there


def part_names(model: NamedModel) -> list[str]:
    count = -(-model.size_bytes // PART_BYTES)
    return [f"{model.file_name}.{number:02}" for number in range(1, count + 1)]


def pack(name: str) -> None:
    """Cut a model's file, and copy the package that reads GGUF files."""
    import gguf

    model = MODELS[name]
    PARTS.mkdir(parents=True, exist_ok=True)
    with resolve(name).open("rb") as file:
        for part in part_names(model):
            (PARTS / part).write_bytes(file.read(PART_BYTES))
            print(PARTS / part)
    package = Path(gguf.__file__).parent
    shutil.copytree(package, PACKAGES / "gguf", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    print(PACKAGES)


def take() -> None:
    """Move what has arrived to the cache; join what is whole."""
    arrived = cache_folder("models") / ".arrived"
    arrived.mkdir(parents=True, exist_ok=True)
    for part in sorted(PARTS.glob("*")) if PARTS.is_dir() else []:
        shutil.move(part, arrived / part.name)
    for model in MODELS.values():
        parts = [arrived / part for part in part_names(model)]
        here = [part for part in parts if part.exists()]
        if len(here) == len(parts):
            join(model, parts)
        elif here:
            print(f"{model.name}: {len(here)} of {len(parts)} parts")


def join(model: NamedModel, parts: list[Path]) -> None:
    whole = parts[0].with_name(f"{model.file_name}.whole")
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    found = sha256_of(whole)
    if found != model.sha256:
        whole.unlink()
        sys.exit(f"{model.name}: SHA-256 {found}, expected {model.sha256}. Pack and carry it again.")
    whole.rename(cache_folder("models") / model.file_name)
    for part in parts:
        part.unlink()
    print(f"{model.name}: whole, {model.size_bytes:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack").add_argument("model", choices=MODELS)
    commands.add_parser("take")
    chosen = parser.parse_args()
    if chosen.command == "pack":
        pack(chosen.model)
    else:
        take()


if __name__ == "__main__":
    main()
