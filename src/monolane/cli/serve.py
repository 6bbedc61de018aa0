"""``monolane serve``."""

from __future__ import annotations

from pathlib import Path

import typer

from monolane.cli import options
from monolane.cli.default_elsewhere import default_elsewhere


def serve(
    model: options.ServedModel = None,
    config: options.Config = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    served_model_name: options.ServedName = None,
    api_key: options.ApiKey = None,
    api_key_file: options.ApiKeyFile = None,
    allow_origin: options.AllowOrigin = None,
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

    key = options.api_key(api_key, api_key_file)
    request_log.set_up(options.log_level(log_level))
    progress = progress_bar()
    if model is None:
        model, line = default_elsewhere(device, workers)
        progress.note(line)
    name, *aliases = (
        served_model_name.split(",") if served_model_name else [Path(model).name if Path(model).exists() else model]
    )
    engine = AsyncEngine.for_model(
        model,
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
    service = Service(engine, name, options.ceiling(ceiling, device, workers), aliases)
    settings = run.Settings(host, port, key, tuple(allow_origin or ()), max_connections)
    run.serve(service, settings, lambda text: typer.echo(text, err=True))
