"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolane.engine.llm import LLM
    from monolane.progress import Progress


def named(model: str | None, device: str, workers: int | None, progress: Progress) -> str:
    """The model that the user has named, or else the one that suits this machine, which a note says."""
    if model is not None:
        return model
    from monolane.engine.default_model import noted_default

    return noted_default(device, workers, progress)


def open_llm(model: str | None, **options: Any) -> LLM:
    """``options``: those of LLM."""
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.llm import LLM

    return LLM(model, progress=progress_bar(), **options)
