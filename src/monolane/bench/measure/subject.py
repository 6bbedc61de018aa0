"""The subject of a benchmark: a model, the target that runs it, and prompts. A shape gets made-up weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolane.bench.measure import checkpoint, mixtures, shapes
from monolane.bench.measure import routing as routings
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
    """A loaded model on a target."""

    name: str
    model: Model
    target: Target
    real: bool  # the weights come from a file and prompts are text; otherwise both are random

    @property
    def kind(self) -> str:
        """cuda, cpu or interpreter: the first word of the target's name."""
        return self.target.name.split()[0]

    @property
    def dtype(self) -> str:
        """The format of the weights that are streamed."""
        return self.model.dtype

    def prompt(self, tokens: int, number: int = 0) -> list[int]:
        """A prompt of this many tokens. Prompts of different numbers differ from their first token on."""
        if not self.real:
            random = np.random.default_rng(number)
            return [int(token) for token in random.integers(0, self.model.config.vocab, tokens)]
        words = self.model.tokenizer.encode(TEXT, special=False)
        first = 7 * number % len(words)
        return [words[(first + place) % len(words)] for place in range(tokens)]


def find_model(
    model: str | None, shape: str | None, progress: Progress, quantise: str | None = None, routing: str = routings.EVEN
) -> tuple[str, Model]:
    """Load a model given by name, folder or file, or make one of a shape; returns its name for results, and it.
    ``quantise``: its weights as "q8" or "q4"; of a shape also a mixture, such as q4_k_m.
    ``routing``: how the routers of a shape with experts choose."""
    if (model is None) == (shape is None):
        raise UsageError("What is to be measured is not clear.", "Give either a model or --shape NAME.")
    if routing not in routings.ROUTINGS:
        raise UsageError(f"There is no routing {routing!r}.", f"Choose one of: {', '.join(routings.ROUTINGS)}.")
    if routing != routings.EVEN and (shape is None or shapes.named(shape).experts is None):
        raise UsageError("Only the routers of shapes with experts are made up.", "Leave --routing out.")
    if shape is not None:
        if quantise in mixtures.MIXTURES:
            return shape, _made_up(shape, quantise, routing)
        published = mixtures.published(shapes.named(shape))
        return shape, _quantised(_made_up(shape, published, routing), quantise)
    from monolane.model.fetch import resolve
    from monolane.model.load import load_model

    found = load_model(resolve(str(model), progress), progress)
    return Path(str(model)).name, _quantised(found, quantise)


def _quantised(model: Model, kind: str | None) -> Model:
    from monolane.model.quantise import quantised

    if kind is None:
        return model
    # What is low-bit already stays as it is.
    dtype = kind if model.dtype == "bf16" else f"{model.dtype.removesuffix('+bf16')}+{kind}"
    return replace(model, weights=quantised(model.weights, kind), dtype=dtype)


def _made_up(shape: str, mixture: str | None, routing: str) -> Model:
    """A model with made-up weights, in bf16 or in a mixture of low-bit formats, and with a tokenizer that has the 256
    bytes and made-up words."""
    import tokenizers

    from monolane.model.load import Model, Tokenization
    from monolane.model.tokenizer import Tokenizer
    from monolane.target.cuda.pack_processes import can_be_opened

    config = shapes.named(shape)
    backend = tokenizers.Tokenizer.from_str(json.dumps(checkpoint.tokenizer(config.vocab)))
    weights = mixtures.made_up(config, mixture, routing)
    can_be_opened(weights, "monolane.bench.measure.pack_main", {"shape": shape, "mixture": mixture, "routing": routing})
    made = Model(shape, Path(shape), config, weights, lambda: Tokenization(Tokenizer(backend, {})))
    return replace(made, dtype=mixture) if mixture else made
