"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monolane.engine.llm import LLM


def open_llm(
    model: str, device: str, workers: int | None, lanes: int | None, placement: str, context: int | None
) -> LLM:
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.llm import LLM

    return LLM(
        model,
        device=device,
        workers=workers,
        lanes=lanes,
        placement=placement,
        context=context,
        progress=progress_bar(),
    )
