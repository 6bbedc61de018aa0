"""What can be asked about an engine at any time: its status, its target, its counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["unloaded", "loading", "ready", "restarting", "stopping", "failed", "closed"]


@dataclass(frozen=True)
class EngineState:
    """``label`` and the byte counts describe the current step of loading; ``problem`` says why the engine restarts or
    has failed; ``core_pid`` is the process id of the engine process."""

    status: Status
    label: str | None
    done_bytes: int
    total_bytes: int
    restarts: int
    problem: str | None
    core_pid: int | None


@dataclass(frozen=True)
class TargetInfo:
    """The target that the model runs on: ``context`` tokens in each of ``caches`` KV caches, ``bytes_per_token``
    bytes of weights read for one decoded token, and ``memory_bytes`` of memory held in all."""

    name: str
    context: int
    bytes_per_token: int
    caches: int
    memory_bytes: int = 0


@dataclass(frozen=True)
class About:
    """What is known of a model that was loaded once: its architecture, how its file stores it, its size on disk."""

    family: str
    dtype: str
    file_format: str
    disk_bytes: int
    template: str  # of its chat; empty where it has none
    can_infill: bool


@dataclass
class Counters:
    """Totals since the start. ``queue_s`` and ``first_token_s`` are sums over the requests that got so far."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_hits: int = 0
    generated_tokens: int = 0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    restarts: int = 0
