"""What late exchanges cost: plain tensor parallelism, Ladder Residual and delayed tensor parallelism (DTP).

All models have the same number of parameters, and see the same text in the same order.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch

from monolane.errors import UsageError
from monolane.model.json_object import read_json_object
from monolane.train.presets import PRESETS
from monolane.train.recipe import Recipe
from monolane.train.run import Say, summary, train, write_result
from monolane.train.tokens import TokenData

SHAPE = "laneformer-27m"
_PASSES = 2  # over the text, at most: what a model has seen often says little about it
_LANES = (4, 8)
_DELAYS = (1, 2, 4)  # layers


def models(tokens: int) -> dict[str, Recipe]:
    """All models by name. How many lanes sum does not matter where all have the same stream."""
    at_once = PRESETS[SHAPE] | {"broadcast_delay": 0}
    found = [Recipe("plain", at_once, tokens), Recipe("ladder", at_once, tokens, ladder=True)]
    for lanes in _LANES:
        for delay in _DELAYS:
            config = PRESETS[SHAPE] | {"num_lanes": lanes, "broadcast_delay": delay}
            found.append(Recipe(f"dtp-{lanes}-lanes-delay-{delay}", config, tokens))
    return {recipe.model: recipe for recipe in found}


def run_all(recipes: list[Recipe], data: TokenData, device: torch.device, out: Path, minutes: float, say: Say) -> bool:
    """Run those that have no result in ``out`` yet, one after the other; returns whether all are finished.

    A run that the time limit interrupts leaves its checkpoint in ``out``, and is the first to go on.
    """
    for recipe in recipes:
        if recipe.tokens > _PASSES * data.train.numel():
            raise UsageError(
                f"{recipe.tokens:,} tokens are more than {_PASSES} passes over {data.train.numel():,}.",
                "Prepare the text of more packages, or train on fewer --tokens.",
            )
    deadline, begun = time.monotonic() + 60 * minutes, False
    for recipe in recipes:
        name = f"{recipe.model}-seed-{recipe.seed}"
        result_file, checkpoint = out / f"{name}.json", out / f"{name}.safetensors"
        if result_file.exists() and not checkpoint.exists():
            if read_json_object(result_file).get("tokens") != recipe.tokens:
                raise UsageError(f"{result_file} is of another number of tokens.", "Choose another --out.")
            continue
        left = deadline - time.monotonic()
        if begun and left <= 0:
            return False
        begun = True
        result = train(recipe, data, device, checkpoint, left / 60, say)
        say(summary(result))
        if not result["finished"]:
            return False
        write_result(result_file, result)
        checkpoint.unlink()  # of hundreds of megabytes; the result is what the experiment is for
    return True


def chosen(tokens: int, seeds: int, only: str) -> list[Recipe]:
    """The runs in order: all models with the first seed, then all with the next. ``only`` names models."""
    known = models(tokens)
    names = [name for name in only.split(",") if name] or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"The experiment has no model {name}.", f"It has {', '.join(known)}.")
    if seeds < 1:
        raise UsageError("An experiment needs at least one seed.", "Choose --seeds 1 or more.")
    return [replace(known[name], seed=seed) for seed in range(seeds) for name in names]
