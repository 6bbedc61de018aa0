"""``monolane chat``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from monolane.cli import opening, options


def chat(
    command: typer.Context,
    model: options.ModelSpec = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    # The sampling options: options.given_sampling() reads them from ``command``. Where one is not given, the model's
    # makers decide.
    max_tokens: options.MaxTokens = None,
    temperature: options.ChatTemperature = None,
    top_k: options.ChatTopK = None,
    top_p: options.ChatTopP = None,
    min_p: options.ChatMinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    repetition_penalty: options.ChatRepetitionPenalty = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
    placement: options.Placement = "together",
    weights: options.Weights = None,
    context: options.Context = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D leaves, /help shows the rest. Reads a pipe line by line."""
    from monolane.cli.chat_loop import ChatLoop
    from monolane.engine.params import SamplingParams

    given = options.given_sampling(command)
    machine = {"device": device, "workers": workers, "lanes": lanes, "placement": placement}
    machine |= {"quantise": weights, "context": context}
    with opening.open_llm(model, **machine) as llm:
        greedy = given.get("temperature") == 0  # the likeliest token, without the penalties that are suggested
        ChatLoop(llm, replace(SamplingParams() if greedy else llm.suggested, **given), system).run()
