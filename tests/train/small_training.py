"""Small training text, and recipes of models that train on it in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monolane.train import sources, text, vocabulary
from monolane.train.presets import PRESETS
from monolane.train.recipe import Recipe

SHAPE: dict[str, Any] = PRESETS["laneformer-tiny"] | {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 320,
    "max_position_embeddings": 24,
    "num_lanes": 4,
}
STEPS = 8


def recipe(**changes: Any) -> Recipe:
    """``changes`` of the recipe, and of the config by its keys."""
    config = SHAPE | {key: changes.pop(key) for key in list(changes) if key in SHAPE}
    plain: dict[str, Any] = {"model": "small", "batch": 4, "micro_batch": 2, "learning_rate": 0.01}
    return Recipe(config=config, tokens=STEPS * 4 * config["max_position_embeddings"], **(plain | changes))


def install(site: Path, name: str, metadata: str, files: dict[str, str]) -> None:
    """A package as pip installs it."""
    information = site / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}\n")
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)
    (information / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def program(number: int, lines: int = 12) -> str:
    """A file like no other."""
    body = "".join(f"    value_{line} = call_{number}(argument, {line})\n" for line in range(lines))
    return f'"""File {number}."""\n\n\ndef function_{number}(argument):\n{body}    return value_0\n'


def prepared(folder: Path) -> Path:
    """Text and tokens of two packages, of which aiohttp validates."""
    site = folder / "site"
    install(site, "writer", "License-Expression: MIT", {f"writer/m{n}.py": program(n) for n in range(60)})
    small = {"aiohttp/web.py": program(1000, lines=6)}
    install(site, "aiohttp", "License-Expression: Apache-2.0", small)
    text.collect(sources.installed_packages([site]), folder / "data")
    vocabulary.prepare(folder / "data", 300)
    return folder / "data"
