"""Errors that a user can act on: each says what was wrong and what to do, and has its own exit code."""

from __future__ import annotations

import shlex
import sys


class MonolaneError(Exception):
    """Base of every error raised on purpose. ``hint`` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(MonolaneError):
    """A parameter, prompt or option is out of its range."""

    exit_code = 2


class ContextLengthError(UsageError):
    """A prompt is too long: it has ``size`` tokens, or other ``units``, and the context holds ``context`` tokens."""

    def __init__(self, message: str, hint: str, context: int, size: int, units: str = "tokens") -> None:
        super().__init__(message, hint)
        self.context, self.size, self.units = context, size, units


class ModelFileError(MonolaneError):
    """A model file is missing, truncated, corrupted or contradicts itself."""

    exit_code = 3


class UnsupportedModelError(MonolaneError):
    """The files are valid, but describe a model that Monolane does not support."""

    exit_code = 4


class FetchError(MonolaneError):
    """A model could not be fetched: there is no network, the source is gone, or the hash differs."""

    exit_code = 5


class ResourceError(MonolaneError):
    """The machine does not have enough memory, disk space or processors."""

    exit_code = 6


class NotEnoughMemoryError(ResourceError):
    """A model needs ``needed`` bytes of memory, and ``available`` are there."""

    def __init__(self, message: str, hint: str = "", needed: int = 0, available: int = 0) -> None:
        super().__init__(message, hint)
        self.needed, self.available = needed, available


class TargetError(MonolaneError):
    """The compiled kernel failed: it did not compile, a worker got stuck, or a result was NaN."""

    exit_code = 7


class EngineFailedError(TargetError):
    """The engine process died, was killed or stopped responding during a request."""


class UnavailableError(MonolaneError):
    """The request cannot be served now; it may succeed after ``retry_after_s`` seconds."""

    exit_code = 8
    retry_after_s = 1


class QueueFullError(UnavailableError):
    """The queue is full."""


class NotReadyError(UnavailableError):
    """The engine is loading, restarting or closing."""


class SlowReaderError(MonolaneError):
    """The client did not read its answer."""

    exit_code = 9


def pip_install(*packages: str) -> str:
    """For hints: the command that installs packages into the environment of this Python."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])
