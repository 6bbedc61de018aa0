"""What is trained and how: plain data, which results and checkpoints contain."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from monolane.errors import UsageError
from monolane.model.config import LaneConfig, ModelConfig
from monolane.model.families import family_of_huggingface
from monolane.model.settings import Settings

_WARM_UP = 0.04  # of all steps
_LAST_RATE = 0.1  # of the highest learning rate, after the cosine decay


@dataclass(frozen=True)
class Recipe:
    """One run. ``config`` has the keys of a published ``config.json``. Sequences are as long as the model's context."""

    model: str  # its name in results
    config: dict[str, Any]
    tokens: int  # at least so many, in whole steps
    ladder: bool = False  # Ladder Residual instead of what the config says about exchanges
    seed: int = 0  # of the weights and of the order of the text
    batch: int = 128  # sequences per step
    micro_batch: int = 64  # sequences at a time, for which there must be memory
    learning_rate: float = 1.5e-3  # the highest

    def __post_init__(self) -> None:
        if not 1 <= self.micro_batch <= self.batch or self.batch % self.micro_batch:
            raise UsageError(
                f"A step of {self.batch} sequences cannot be divided into parts of {self.micro_batch}.",
                "Choose --batch as a multiple of --micro-batch.",
            )
        if self.tokens < 1 or not 0 < self.learning_rate < 1 or self.seed < 0:
            raise UsageError(
                "Training needs at least one token, a learning rate between 0 and 1, and a seed of 0 or more.",
                "Look at --tokens, --learning-rate and --seed.",
            )
        if self.lanes.delay and self.ladder:
            raise UsageError("Ladder Residual has no delay of lanes.", "Set broadcast_delay to 0.")

    @cached_property
    def shape(self) -> ModelConfig:
        settings = Settings(self.config, f"the config of {self.model}")
        return family_of_huggingface(settings).huggingface_config(settings)

    @property
    def lanes(self) -> LaneConfig:
        if self.shape.lanes is None:
            raise UsageError(
                f"{self.model} is no Laneformer with several lanes.",
                "Give a config with model_type laneformer_tp and num_lanes of 2 or more.",
            )
        return self.shape.lanes

    @property
    def step_tokens(self) -> int:
        return self.batch * self.shape.context

    @property
    def steps(self) -> int:
        return math.ceil(self.tokens / self.step_tokens)

    def rate_at(self, step: int) -> float:
        """The learning rate: a linear warm-up, then a cosine."""
        warm_up = max(1, round(_WARM_UP * self.steps))
        if step < warm_up:
            return self.learning_rate * (step + 1) / warm_up
        way = (step - warm_up) / max(1, self.steps - warm_up)
        return self.learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * way)) / 2)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
