"""What is measured: a model, the target that runs it, and prompts for it. A shape is a model with made-up weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolane.bench.measure import checkpoint, shapes
from monolane.errors import UsageError
from monolane.target.base import Target

if TYPE_CHECKING:
    from monolane.model.load import Model
    from monolane.progress import Progress

TEXT = (
    "The night train passes the village at a quarter past two, and for a moment every window on the slope is lit. "
    "Most people sleep through it. The baker does not: he has been up since one, and he sets his clock by it, because "
    "the train has been late only four times in thirty years. In 1994 a tree lay on the line; twice it was the snow. "
    "Of the fourth time he says nothing, but there is a photograph above the oven that shows the platform, empty, and "
    "a suitcase. def late(minutes: int) -> bool: return minutes > 3  # what the timetable calls punctual. "
)


@dataclass(frozen=True)
class Subject:
    """``real``: the weights come from a file, and prompts are text; otherwise prompts are random."""

    name: str
    model: Model
    target: Target
    real: bool

    @property
    def kind(self) -> str:
        """cuda, cpu or interpreter: the first word of the target's name."""
        return self.target.name.split()[0]

    def prompt(self, tokens: int, number: int = 0) -> list[int]:
        """So many tokens; prompts of different numbers differ from their first token on."""
        if not self.real:
            dice = np.random.default_rng(number)
            return [int(token) for token in dice.integers(0, self.model.config.vocab, tokens)]
        words = self.model.tokenizer.encode(TEXT, special=False)
        first = 7 * number % len(words)
        return [words[(first + place) % len(words)] for place in range(tokens)]


def find_model(model: str | None, shape: str | None, progress: Progress) -> tuple[str, Model]:
    """A model by name, folder or file, or by its shape alone; with the name that results carry."""
    if (model is None) == (shape is None):
        raise UsageError("What is to be measured is not clear.", "Give either a model or --shape NAME.")
    if shape is not None:
        return shape, _made_up(shape)
    from monolane.model.fetch import resolve
    from monolane.model.load import load_model

    found = load_model(resolve(str(model), progress), progress)
    return Path(str(model)).name, found


def _made_up(shape: str) -> Model:
    """Made-up weights, and a tokenizer that spells bytes."""
    import tokenizers

    from monolane.model.load import Model
    from monolane.model.tokenizer import Tokenizer

    config = shapes.named(shape)
    backend = tokenizers.Tokenizer.from_str(json.dumps(checkpoint.tokenizer(config.vocab)))
    weights = shapes.MadeUpWeights(config)
    return Model(shape, Path(shape), config, weights, Tokenizer(backend, {}), None, frozenset())
