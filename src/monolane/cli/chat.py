"""``monolane chat``."""

from __future__ import annotations

from typing import Annotated

import typer

from monolane.cli import opening, options
from monolane.model.catalogue import DEFAULT_MODEL


def chat(
    command: typer.Context,
    model: options.ModelSpec = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    # The sampling options: options.sampling_params() reads them from ``command``.
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
    lanes: options.Lanes = None,
    placement: options.Placement = "together",
    weights: options.Weights = None,
    context: options.Context = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, /reset forgets, /exit or Ctrl-D leaves. Reads a pipe line by line."""
    from monolane.cli.chat_loop import ChatLoop

    params = options.sampling_params(command)
    machine = {"device": device, "workers": workers, "lanes": lanes, "placement": placement}
    machine |= {"quantise": weights, "context": context}
    with opening.open_llm(model, **machine) as llm:
        ChatLoop(llm, params, system).run()
