"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolane.engine.llm import LLM


def open_llm(model: str, **options: Any) -> LLM:
    """``options``: those of LLM."""
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.llm import LLM

    return LLM(model, progress=progress_bar(), **options)
