"""A process that packs its share of made-up weights: the same as those of the benchmark that has started it."""

from __future__ import annotations

from typing import Any

from monolane.bench.measure import mixtures, shapes
from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.target.cuda.pack_main import run


def made_again(source: dict[str, Any]) -> tuple[ModelConfig, Weights]:
    config = shapes.named(source["shape"])
    return config, mixtures.made_up(config, source["mixture"], source["routing"])


if __name__ == "__main__":
    run(made_again)
