"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolane.progress import Progress

if TYPE_CHECKING:
    from monolane.engine.async_engine import AsyncEngine
    from monolane.engine.llm import LLM


def open_llm(model: str, device: str, workers: int | None, context: int | None) -> LLM:
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.llm import LLM

    return LLM(model, device=device, workers=workers, context=context, progress=progress_bar())


def open_engine(
    model: str, device: str, workers: int | None, context: int | None, queue_limit: int, progress: Progress
) -> AsyncEngine:
    from monolane.engine.async_engine import AsyncEngine

    return AsyncEngine.for_model(
        model, device=device, workers=workers, context=context, queue_limit=queue_limit, progress=progress
    )
