"""``monolane generate``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from monolane.cli import opening, options
from monolane.errors import UsageError


def generate(
    command: typer.Context,
    model: options.ModelSpec = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text to continue. Without it, stdin is read.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: text, token_ids, finish_reason, timings, …")
    ] = False,
    # The sampling options: options.sampling_params() reads them from ``command``.
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    logprobs: options.Logprobs = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
    placement: options.Placement = "together",
    weights: options.Weights = None,
    context: options.Context = None,
) -> None:
    """Continue a text, just as it is given: no chat template."""
    from monolane.cli.chat_loop import summary, write_answer

    if logprobs is not None and not as_json:
        raise UsageError("--logprobs has nowhere to go.", "Add --json.")
    params = options.sampling_params(command)
    text = _stdin() if prompt is None else prompt
    machine = {"device": device, "workers": workers, "lanes": lanes, "placement": placement}
    machine |= {"quantise": weights, "context": context}
    with opening.open_llm(model, **machine) as llm:
        if as_json:
            typer.echo(json.dumps(llm.generate(text, params).to_dict()))
        else:
            result = write_answer(llm.stream(text, params))
            typer.secho(summary(result.timings), err=True, dim=True)


def _stdin() -> str:
    """The prompt from a pipe, without the newline that ends it."""
    if sys.stdin.isatty():
        raise UsageError("There is no prompt.", 'Give one: --prompt "Once upon a time", or through a pipe.')
    from monolane.cli.chat_loop import read_piped

    return read_piped(sys.stdin.read).removesuffix("\n")
