"""The options that several commands share, each with its one explanation."""

from __future__ import annotations

from typing import Annotated

import typer

from monolane.errors import UsageError

MACHINE, SAMPLING = "Machine", "Sampling"

ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name (see 'monolane models'), a hub id, a folder with safetensors, or a .gguf file.",
    ),
]

Device = Annotated[
    str,
    typer.Option(help="auto, cuda, cpu, or interpreter (NumPy, slow).", rich_help_panel=MACHINE),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Threads that compute. Default: as many as suit this machine.", rich_help_panel=MACHINE),
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens that prompt and answer may have together. Default: chosen for the model.", rich_help_panel=MACHINE
    ),
]

MaxTokens = Annotated[
    int | None,
    typer.Option(help="Tokens to make at most. Default: until the context is full.", rich_help_panel=SAMPLING),
]
Temperature = Annotated[
    float,
    typer.Option(
        help="0: the likeliest token every time; 1: as the model was trained; higher: wilder.", rich_help_panel=SAMPLING
    ),
]
TopK = Annotated[int, typer.Option(help="Keep the K likeliest tokens only; 0: all.", rich_help_panel=SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Keep the likeliest tokens that hold this much probability.", rich_help_panel=SAMPLING)
]
MinP = Annotated[
    float,
    typer.Option(help="Keep tokens at least this many times as likely as the likeliest.", rich_help_panel=SAMPLING),
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same answer. Default: a new one.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends the answer; may be given several times.", rich_help_panel=SAMPLING),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.", rich_help_panel=SAMPLING)
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1: tokens that occurred become less likely.", rich_help_panel=SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken off the logit of each token of the answer so far.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="The same, once for every time it occurred.", rich_help_panel=SAMPLING)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=NUMBER",
        help="Added to the logit of a token; may be given several times.",
        rich_help_panel=SAMPLING,
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="With --json: log probabilities of each token and of the N likeliest ones.", rich_help_panel=SAMPLING
    ),
]


def biases(entries: list[str] | None) -> dict[int, float]:
    """ID=NUMBER, as typed."""
    result = {}
    for entry in entries or []:
        token, _, number = entry.partition("=")
        try:
            result[int(token)] = float(number)
        except ValueError as error:
            raise UsageError(f"--logit-bias is {entry!r}.", "Write ID=NUMBER, such as --logit-bias 42=-5.") from error
    return result
