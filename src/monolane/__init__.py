"""Monolane: the fastest possible answer to one request.

    from monolane import LLM, SamplingParams

    with LLM() as llm:
        print(llm.generate("The sky is", SamplingParams(max_tokens=32)).text)

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from monolane.errors import (
    FetchError,
    ModelFileError,
    MonolaneError,
    ResourceError,
    TargetError,
    UnsupportedModelError,
    UsageError,
)

if TYPE_CHECKING:
    from monolane.engine.llm import LLM
    from monolane.engine.params import SamplingParams
    from monolane.engine.result import Completion, Delta, Timings
    from monolane.engine.stream import Stream

    __version__: str

_HOMES = {
    "LLM": "llm",
    "SamplingParams": "params",
    "Completion": "result",
    "Delta": "result",
    "Timings": "result",
    "Stream": "stream",
}

__all__ = [
    "LLM",
    "Completion",
    "Delta",
    "FetchError",
    "ModelFileError",
    "MonolaneError",
    "ResourceError",
    "SamplingParams",
    "Stream",
    "TargetError",
    "Timings",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name in _HOMES:
        return getattr(import_module(f"monolane.engine.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'monolane' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("monolane")
    except PackageNotFoundError:
        return "0+source"  # run from the source tree, without installing it
