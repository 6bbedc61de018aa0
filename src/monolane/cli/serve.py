"""``monolane serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from monolane.cli import options
from monolane.cli.default_elsewhere import default_elsewhere
from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.progress import Progress


def serve(
    model: options.ServedModel = None,
    config: options.Config = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    served_model_name: options.ServedName = None,
    api_key: options.ApiKey = None,
    api_key_file: options.ApiKeyFile = None,
    allow_origin: options.AllowOrigin = None,
    ray: options.Ray = False,
    replicas: options.Replicas = None,
    queue_limit: options.QueueLimit = 64,
    max_connections: options.MaxConnections = 512,
    max_answer_tokens: options.MaxAnswerTokens = None,
    max_answer_seconds: options.MaxAnswerSeconds = None,
    log_level: options.LogLevel = "info",
    ceiling: options.Ceiling = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    lanes: options.Lanes = None,
    placement: options.Placement = "together",
    weights: options.Weights = None,
    context: options.Context = None,
) -> None:
    """Serve a model to clients of OpenAI and Anthropic, with a playground at /. Ctrl-C ends it."""
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.async_engine import AsyncEngine
    from monolane.serve import request_log, run
    from monolane.serve.service import Service

    if replicas is not None and not ray:
        raise UsageError("--replicas is given without --ray.", "Add --ray.")
    key = options.api_key(api_key, api_key_file)
    request_log.set_up(options.log_level(log_level))
    progress = progress_bar()
    if model is None:
        model, line = default_elsewhere(device, workers)
        progress.note(line)
    place = str(Path(model).resolve()) if Path(model).exists() else model  # a replica has another working directory
    name, *aliases = (
        served_model_name.split(",") if served_model_name else [Path(model).name if Path(model).exists() else model]
    )

    def make(progress: Progress | None = None) -> Service:
        """Called here, or with --ray in the process of each replica."""
        engine = AsyncEngine.for_model(
            place,
            device=device,
            workers=workers,
            lanes=lanes,
            placement=placement,
            quantise=weights,
            context=context,
            queue_limit=queue_limit,
            max_answer_tokens=max_answer_tokens,
            max_answer_s=max_answer_seconds,
            progress=progress,
        )
        return Service(engine, name, options.ceiling(ceiling, device, workers), aliases)

    settings = run.Settings(host, port, key, tuple(allow_origin or ()), max_connections)
    say = lambda text: typer.echo(text, err=True)  # noqa: E731
    if not ray:
        run.serve(make(progress), settings, say)
        return
    from monolane.cluster.deployment import Wanted
    from monolane.cluster.run import bounds, serve_replicas

    gpus = lanes if lanes and placement == "apart" else 1
    serve_replicas(make, name, Wanted(*bounds(replicas or "1"), device, workers, gpus), settings, say)
