"""The services of replicas in tests. Replicas are processes of Ray, which import this file by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from monolane.serve.service import Service
from synthetic_engine import synthetic_engine


@dataclass(frozen=True)
class Synthetic:
    """Makes a service with a synthetic engine."""

    behaviour: dict[str, Any] = field(default_factory=dict)
    queue_limit: int = 64

    def __call__(self) -> Service:
        return Service({"fake": synthetic_engine(self.queue_limit, **self.behaviour)})
