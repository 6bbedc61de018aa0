"""The command line. Results go to stdout, everything else to stderr; what is heavy is imported where it is used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane import cli_options as options
from monolane.errors import MonolaneError, UsageError
from monolane.model.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from monolane.engine.llm import LLM

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
    """The program. Errors made for users end it with their message and exit code, and without a traceback."""
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


@app.command()
def pull(model: Annotated[str, typer.Argument(metavar="MODEL", help="A name or a hub id.")]) -> None:
    """Fetch a model, and print where it lies."""
    from monolane.model.fetch import resolve
    from monolane.progress_bar import progress_bar

    typer.echo(resolve(model, progress_bar()))


@app.command()
def models() -> None:
    """List the models with a name, and those already fetched."""
    from monolane.model.cache import human_size
    from monolane.model.fetch import describe_models

    entries = describe_models()
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = "fetched" if entry.path else ""
        default = " (default)" if entry.name == DEFAULT_MODEL else ""
        size = human_size(entry.size_bytes)
        typer.echo(f"{entry.name:{width}}  {size:>9}  {state:7}  {entry.description}{default}".rstrip())


@app.command()
def generate(
    model: options.ModelSpec = DEFAULT_MODEL,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text to continue. Without it, stdin is read.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: text, token_ids, finish_reason, timings, …")
    ] = False,
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
    context: options.Context = None,
) -> None:
    """Continue a text, just as it is given: no chat template."""
    from monolane.chat_loop import summary, write_answer
    from monolane.engine.params import SamplingParams

    if logprobs is not None and not as_json:
        raise UsageError("--logprobs has nowhere to go.", "Add --json.")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
        ignore_eos=ignore_eos,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=options.biases(logit_bias),
        logprobs=logprobs,
    )
    text = _stdin() if prompt is None else prompt
    with _open(model, device, workers, context) as llm:
        if as_json:
            typer.echo(json.dumps(llm.generate(text, params).to_dict()))
        else:
            result = write_answer(llm.stream(text, params))
            typer.secho(summary(result.timings), err=True, dim=True)


@app.command()
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
    from monolane.chat_loop import ChatLoop
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
    with _open(model, device, workers, context) as llm:
        ChatLoop(llm, params, system).run()


@app.command()
def inspect(
    model: options.ModelSpec = DEFAULT_MODEL,
    workers: options.Workers = None,
    context: options.Context = None,
    picture: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture of the tapes goes (.svg, .png or .pdf).")
    ] = Path("plan.svg"),
) -> None:
    """Show a model's program: stages, bytes per stage and worker, hand-offs, balance; and draw its tapes."""
    from monolane.model.fetch import resolve
    from monolane.model.load import load_config
    from monolane.program import inspect as program
    from monolane.progress_bar import progress_bar
    from monolane.target.opening import choose_context, plan_for

    config = load_config(resolve(model, progress_bar()))
    plan = plan_for(config, workers)
    typer.echo(program.report(plan, choose_context(config.context, context)))
    program.picture(plan, picture)
    typer.echo(f"picture: {picture}", err=True)


@app.command()
def serve(
    model: options.ModelSpec = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    device: options.Device = "auto",
    workers: options.Workers = None,
    context: options.Context = None,
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/models, /health."""
    from monolane.serve.run import serve as run_server

    name = Path(model).name if Path(model).exists() else model
    run_server(
        lambda: _open(model, device, workers, context), name, host, port, lambda text: typer.echo(text, err=True)
    )


def _open(model: str, device: str, workers: int | None, context: int | None) -> LLM:
    from monolane.engine.llm import LLM
    from monolane.progress_bar import progress_bar

    return LLM(model, device=device, workers=workers, context=context, progress=progress_bar())


def _stdin() -> str:
    """The prompt from a pipe, without the newline that ends it."""
    if sys.stdin.isatty():
        raise UsageError("There is no prompt.", 'Give one: --prompt "Once upon a time", or through a pipe.')
    from monolane.chat_loop import read_piped

    return read_piped(sys.stdin.read).removesuffix("\n")
