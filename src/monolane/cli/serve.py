"""``monolane serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from monolane.cli import options
from monolane.cli.default_elsewhere import default_elsewhere
from monolane.cli.served_names import named
from monolane.errors import UsageError

if TYPE_CHECKING:
    from monolane.progress import Progress


def serve(
    model: options.ServedModels = None,
    config: options.Config = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    served_model_name: options.ServedName = None,
    api_key: options.ApiKey = None,
    api_key_file: options.ApiKeyFile = None,
    allow_origin: options.AllowOrigin = None,
    keep_alive: options.KeepAlive = None,
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
    """Serve models to clients of OpenAI, Anthropic and Ollama, with a playground at /. Ctrl-C ends it."""
    from monolane.cli.progress_bar import progress_bar
    from monolane.engine.async_engine import AsyncEngine
    from monolane.engine.queue import WaitingQueue
    from monolane.serve import durations, request_log, run
    from monolane.serve.service import Service

    if replicas is not None and not ray:
        raise UsageError("--replicas is given without --ray.", "Add --ray.")
    key = options.api_key(api_key, api_key_file)
    request_log.set_up(options.log_level(log_level))
    progress = progress_bar()
    keep_alive_s = durations.seconds(keep_alive or "-1", "--keep-alive")
    if not model:
        chosen, line = default_elsewhere(device, workers)
        model = [chosen]
        progress.note(line)
    specs, aliases = named(model, served_model_name)
    # A replica has another working directory.
    places = {name: str(Path(spec).resolve()) if Path(spec).exists() else spec for name, spec in specs.items()}

    def make(progress: Progress | None = None) -> Service:
        """Called here, or with --ray in the process of each replica."""
        queue = WaitingQueue(queue_limit)
        engines = {
            name: AsyncEngine.for_model(
                place,
                device=device,
                workers=workers,
                lanes=lanes,
                placement=placement,
                quantise=weights,
                context=context,
                sharing=len(places),
                queue=queue,
                max_answer_tokens=max_answer_tokens,
                max_answer_s=max_answer_seconds,
                progress=progress,
            )
            for name, place in places.items()
        }
        return Service(engines, options.ceiling(ceiling, device, workers), aliases, keep_alive_s)

    settings = run.Settings(host, port, key, tuple(allow_origin or ()), max_connections)
    say = lambda text: typer.echo(text, err=True)  # noqa: E731
    if not ray:
        run.serve(make(progress), settings, say)
        return
    from monolane.cluster.deployment import Wanted
    from monolane.cluster.run import bounds, serve_replicas

    gpus = lanes if lanes and placement == "apart" else 1
    serve_replicas(make, ", ".join(places), Wanted(*bounds(replicas or "1"), device, workers, gpus), settings, say)
