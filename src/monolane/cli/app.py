"""The command line. Results go to stdout, all else to stderr. Commands import heavy modules only when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from monolane.cli.bench import bench
from monolane.cli.ceiling import ceiling
from monolane.cli.chat import chat
from monolane.cli.generate import generate
from monolane.cli.inspect import inspect
from monolane.cli.models import models
from monolane.cli.plan import plan
from monolane.cli.pull import pull
from monolane.cli.rm import rm
from monolane.cli.serve import serve
from monolane.cli.trace import trace
from monolane.errors import MonolaneError

app = typer.Typer(
    name="monolane",
    help="Real-time LLM inference: the fastest possible answer to one request.",
    epilog="Models are kept under ~/.cache/monolane; MONOLANE_CACHE names another place.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. A MonolaneError ends it with its message and exit code, without a traceback."""
    try:
        app()
    except MonolaneError as error:
        typer.echo(f"error: {error.message}", err=True)
        if error.hint:
            typer.echo(error.hint, err=True)
        sys.exit(error.exit_code)


def _show_version(wanted: bool) -> None:
    if wanted:
        import monolane

        typer.echo(f"monolane {monolane.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


for command in (pull, models, rm, generate, chat, inspect, trace, bench, ceiling, plan, serve):
    app.command()(command)
