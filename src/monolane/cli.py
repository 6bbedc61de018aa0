"""The command line. Results go to stdout, everything else to stderr; what is heavy is imported where it is used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolane import cli_ceiling
from monolane import cli_options as options
from monolane.cli_bench import bench
from monolane.cli_plan import plan
from monolane.errors import MonolaneError, UsageError
from monolane.model.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from monolane.engine.async_engine import AsyncEngine
    from monolane.engine.llm import LLM
    from monolane.model.progress import Progress

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
    device: options.Device = "auto",
    workers: options.Workers = None,
    context: options.Context = None,
    card: Annotated[
        str | None,
        typer.Option(help="A GPU that is not here: h200, b200, rtx-5090, …", rich_help_panel=options.MACHINE),
    ] = None,
    picture: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture of the tapes goes (.svg, .png or .pdf).")
    ] = Path("plan.svg"),
) -> None:
    """Show a model's program: stages, bytes per stage and worker, hand-offs, balance; and draw its tapes.

    For cuda also the kernel, without a GPU: registers, shared memory, ring, and the time each stage should take.
    """
    from monolane.model.fetch import resolve
    from monolane.model.load import load_config
    from monolane.program import inspect as program
    from monolane.progress_bar import progress_bar
    from monolane.target.cuda import inspect as cuda
    from monolane.target.cuda.opening import unused_gpu
    from monolane.target.opening import DEVICES, choose_context, plan_for

    if device not in DEVICES:
        raise UsageError(f"There is no device {device!r}.", f"Choose one of: {', '.join(DEVICES)}.")
    chosen, progress = cuda.choose_card(device, workers, card), progress_bar()
    if chosen is None and device == "auto" and (line := unused_gpu(workers)) is not None:
        progress.note(line)
    config = load_config(resolve(model, progress), progress)
    length = choose_context(config.context, context)
    plan = cuda.plan_for(config, chosen) if chosen else plan_for(config, workers)
    parts = [program.report(plan, length), *([cuda.report(plan, length, chosen)] if chosen else [])]
    typer.echo("\n\n".join(parts))
    program.picture(plan, picture)
    typer.echo(f"picture: {picture}", err=True)


@app.command()
def trace(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=f"As for generate. Default: {DEFAULT_MODEL}.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="A model of this shape with made-up weights instead, such as llama-3.2-1b.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to trace.")] = 8,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the trace goes (.json); open it in ui.perfetto.dev.")
    ] = Path("trace.json"),
    picture: Annotated[Path, typer.Option(metavar="FILE", help="Where the picture of it goes (.svg).")] = Path(
        "trace.svg"
    ),
    device: options.Device = "auto",
    workers: options.Workers = None,
) -> None:
    """Show where the time of a token goes: when every worker waited and worked, stage by stage; and draw it."""
    from monolane.bench import shapes, trace_run
    from monolane.progress_bar import progress_bar

    if shape is not None and model is not None:
        raise UsageError("A model and --shape were given.", "Choose one of the two.")
    how = trace_run.How(tokens, device, workers, out, picture)
    progress = progress_bar()
    if shape is not None:
        config = shapes.named(shape)
        typer.echo(trace_run.run(shape, config, shapes.MadeUpWeights(config), how, progress))
    else:
        from monolane.model.fetch import resolve
        from monolane.model.load import load_model

        found = load_model(resolve(model or DEFAULT_MODEL, progress), progress)
        typer.echo(trace_run.run(found.name, found.config, found.weights, how, progress))
    typer.echo(f"trace: {out}\npicture: {picture}", err=True)


app.command()(bench)
app.command()(cli_ceiling.ceiling)
app.command()(plan)


@app.command()
def serve(
    model: options.ServedModel = DEFAULT_MODEL,
    config: options.Config = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    served_model_name: options.ServedName = None,
    api_key: options.ApiKey = None,
    api_key_file: options.ApiKeyFile = None,
    allow_origin: options.AllowOrigin = None,
    queue_limit: options.QueueLimit = 64,
    max_connections: options.MaxConnections = 512,
    log_level: options.LogLevel = "info",
    ceiling: options.Ceiling = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    context: options.Context = None,
) -> None:
    """Serve a model to clients of OpenAI and Anthropic, with a playground at /. Ctrl-C ends it."""
    from monolane.progress_bar import progress_bar
    from monolane.serve import request_log, run
    from monolane.serve.service import Service

    key = options.api_key(api_key, api_key_file)
    request_log.set_up(options.log_level(log_level))
    name = served_model_name or (Path(model).name if Path(model).exists() else model)
    engine = _engine(model, device, workers, context, queue_limit, progress_bar())
    service = Service(engine, name, options.ceiling(ceiling, device, workers))
    settings = run.Settings(host, port, key, tuple(allow_origin or ()), max_connections)
    run.serve(service, settings, lambda text: typer.echo(text, err=True))


def _engine(
    model: str, device: str, workers: int | None, context: int | None, queue_limit: int, progress: Progress
) -> AsyncEngine:
    from monolane.engine.async_engine import AsyncEngine

    return AsyncEngine.for_model(
        model, device=device, workers=workers, context=context, queue_limit=queue_limit, progress=progress
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
