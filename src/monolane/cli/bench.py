"""``monolane bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from monolane.cli import opening, options

WHAT, METHOD, SERVER = "What is measured", "How it is measured", "A server"


def bench(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="As for generate; with --server, the name the model goes by there."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="A model of this shape with made-up weights, such as llama-3.2-1b, or llama-3.2-1b:4 of 4 layers; "
            "--weights then also takes q4_k_m, q8_0, fp8 and other formats.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Any OpenAI-compatible server instead, from outside.", rich_help_panel=SERVER),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Of that server.", rich_help_panel=SERVER, envvar="MONOLANE_API_KEY")
    ] = None,
    workflow: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="An agent's loop instead: plan, write, test, revise, until so many tokens are made.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            metavar="0,1k,8k,32k",
            help="Also decode with so many tokens in the cache. With --workflow: how long a conversation may get.",
            rich_help_panel=METHOD,
        ),
    ] = "",
    tokens: Annotated[int | None, typer.Option(help="Tokens per answer.", rich_help_panel=METHOD)] = None,
    rounds: Annotated[int, typer.Option(help="Times that everything is measured.", rich_help_panel=METHOD)] = 5,
    peers: Annotated[
        str,
        typer.Option(
            help="In the same rounds: all, none, or some of torch.compile, transformers, llama.cpp, vllm, sglang.",
            rich_help_panel=METHOD,
        ),
    ] = "all",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go, one JSON file each.")] = Path(
        "benchmarks/results"
    ),
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Replace results that git tracks; without it, the new ones go to a folder beside them."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Results on stdout as JSON instead of a table.")] = False,
    picture: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture goes (.png): speed over context, time per stage.")
    ] = Path("bench.png"),
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
    placement: options.Placement = "together",
    weights: options.Weights = None,
    routing: Annotated[
        str,
        typer.Option(help="Of a shape with experts: even, or skewed as in trained models.", rich_help_panel=WHAT),
    ] = "even",
) -> None:
    """Measure a model on this machine: decode speed, first token, throughput, beside the ceiling and beside others."""
    from monolane.bench.measure import lengths, run
    from monolane.bench.peers import registry
    from monolane.bench.report import show
    from monolane.cli.progress_bar import progress_bar

    progress = progress_bar()
    if shape is None and server is None:
        model = opening.named(model, device, workers, progress)
    chosen = run.Options(
        model=model,
        shape=shape,
        server=server,
        api_key=api_key,
        device=device,
        workers=workers,
        lanes=lanes,
        placement=placement,
        weights=weights,
        routing=routing,
        contexts=lengths.parse_lengths(context, "--context"),
        tokens=tokens,
        rounds=rounds,
        peers=registry.parse(peers),
        workflow=workflow,
        out=out,
        keep=keep,
        picture=picture,
    )
    results = run.run(chosen, progress, lambda text: typer.echo(text, err=True))
    typer.echo(json.dumps(results, indent=2) if as_json else show.text(results))
