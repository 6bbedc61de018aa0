"""``monolane chat``."""

from __future__ import annotations

from typing import Annotated

import typer

from monolane.cli import opening, options
from monolane.model.catalogue import DEFAULT_MODEL


def chat(
    model: options.ModelSpec = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    device: options.Device = "auto",
    workers: options.Workers = None,
    context: options.Context = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, /reset forgets, /exit or Ctrl-D leaves. Reads a pipe line by line."""
    from monolane.cli.chat_loop import ChatLoop
    from monolane.engine.params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
        repetition_penalty=repetition_penalty,
    )
    with opening.open_llm(model, device, workers, context) as llm:
        ChatLoop(llm, params, system).run()
