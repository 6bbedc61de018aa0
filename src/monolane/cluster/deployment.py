"""The replicas on Ray Serve: how they are deployed, asked and taken down."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import Message

from monolane.cluster.calls import Call, ReplicaLostError
from monolane.engine.daemon_thread import in_daemon_thread
from monolane.errors import NotReadyError, ResourceError, UsageError, pip_install
from monolane.serve.service import Service

PACKAGE = "ray[serve]>=2.60"
ACCEPT_S = 10.0  # for a replica to take a request; longer only where there is none, because it starts again
ASK_S = 5.0  # for all replicas to tell state and metrics
CLOSE_S = 10.0  # for all of them to end with the server
DRAIN_S = 600.0  # for the answers of a replica that is not needed any more
UPSCALE_S = 10.0  # that the load must last before a replica is added; Ray takes one away after 10 minutes
TRIED = 3  # times that a replica may fail to start before the server gives up


@dataclass(frozen=True)
class Wanted:
    """What the user asks for: ``low`` to ``high`` replicas, as many as the load wants; and what each runs on."""

    low: int
    high: int
    device: str = "auto"
    workers: int | None = None
    gpus: int = 1


@dataclass(frozen=True)
class Size:
    """How many replicas there are, and what each takes of its machine."""

    low: int
    high: int
    gpus: int = 0
    processors: int | None = None


class Deployment:
    """The replicas of the model ``name``, as the front asks for them. ``make`` makes the service of one, in its own
    process."""

    def __init__(self, make: Callable[[], Service], name: str, size: Size, max_requests: int) -> None:
        self._make, self._size, self._max_requests = make, size, max_requests
        self._application = "monolane-" + re.sub(r"[^\w.-]", "-", name)  # in Ray Serve; other models have others
        self._handle: Any = None
        self._label: str | None = None
        self._closed = False
        self._deploying: asyncio.Future[Any] | None = None

    # --- start and end ---

    async def start(self) -> None:
        """Return when the first replica is ready; raise what went wrong."""
        self._deploying = asyncio.ensure_future(in_daemon_thread(self._deploy))
        handle = await asyncio.shield(self._deploying)
        while not self._closed:
            status, ready, told = await in_daemon_thread(lambda: _status(self._application))
            if status == "DEPLOY_FAILED":
                raise ResourceError(f"The replicas did not start: {cause(told)}", "See to that, and start again.")
            if ready:
                self._handle = handle
                return
            self._label = f"starting {self._size.low} replicas"
            await asyncio.sleep(0.2)
        raise NotReadyError("The server was stopped while the replicas started.")

    async def close(self) -> None:
        """Take the replicas down; Ray goes on with it where it takes longer than CLOSE_S."""
        self._closed = True
        if self._deploying is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.wait([self._deploying])
                await in_daemon_thread(lambda: _delete(self._application))

    # --- requests ---

    async def answer(self, call: Call) -> AsyncGenerator[Sequence[Message]]:
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        response = self._loaded().options(stream=True).answer.remote(call)
        try:
            async with asyncio.timeout(ACCEPT_S):
                accepted = await anext(response)
            yield accepted
            async for piece in response:
                yield piece
        except TimeoutError:
            raise NotReadyError("No replica is ready.", "Ask again in a moment.") from None
        except (RayError, RayServeException) as error:
            raise ReplicaLostError("The replica that answered was lost.", "Ask again: another one will.") from error
        finally:
            response.cancel()

    async def states(self) -> Sequence[dict[str, Any]]:
        if self._handle is None:
            return [_waiting("loading", self._label)]
        return await self._all("state") or [_waiting("restarting", "waiting for a replica")]

    async def metrics(self) -> dict[str, bytes]:
        return {} if self._handle is None else dict(await self._all("metrics"))

    # --- inside ---

    def _loaded(self) -> Any:
        if self._handle is None:
            raise NotReadyError("The replicas are still loading.", "Ask again in a moment.")
        return self._handle

    async def _all(self, method: str) -> list[Any]:
        """What each replica returns; those that fail are left out."""
        from ray.serve.exceptions import DeploymentUnavailableError

        try:
            results = await self._handle.broadcast(method).results_async(timeout_s=ASK_S, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            return []
        return [result for result in results if not isinstance(result, Exception)]

    def _deploy(self) -> Any:
        from ray import serve
        from ray.serve.config import RequestRouterConfig

        from monolane.cluster.replica import Replica
        from monolane.cluster.router import ConversationRouter

        size = self._size
        if size.low == size.high:
            number: dict[str, Any] = {"num_replicas": size.low}
        else:
            number = {
                "autoscaling_config": {
                    "min_replicas": size.low,
                    "max_replicas": size.high,
                    "target_ongoing_requests": 2,  # one runs and one waits; with more, another replica is wanted
                    "upscale_delay_s": UPSCALE_S,
                }
            }
        deployed = serve.deployment(
            name="Replica",
            ray_actor_options={"num_gpus": size.gpus, "num_cpus": size.processors or 1},
            max_ongoing_requests=self._max_requests,  # the engine's own queue is the limit
            max_constructor_retry_count=TRIED,
            graceful_shutdown_timeout_s=DRAIN_S,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=5,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
            request_router_config=RequestRouterConfig(request_router_class=ConversationRouter),
            **number,
        )(Replica)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        _delete(self._application)  # what a front that was killed has left
        target = serve.RunTarget(deployed.bind(self._make, size.processors), name=self._application, route_prefix=None)
        return serve.run_many([target], wait_for_applications_running=False)[0]


def connect() -> None:
    """Connect to the Ray cluster that RAY_ADDRESS names, or that this machine is part of; else start one here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray import serve  # noqa: F401  # Ray can be installed without it
    except ImportError as error:
        raise UsageError("--ray needs Ray Serve, which is not installed.", f"Run {pip_install(PACKAGE)}") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray.init(logging_level="error", include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ResourceError(f"Ray cannot be reached: {error}", "Check RAY_ADDRESS and 'ray status'.") from error


def size_of(wanted: Wanted) -> Size:
    """What each replica takes: GPUs where there are any, or else a share of the processors."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    low, high, workers = wanted.low, wanted.high, wanted.workers
    has_gpus = any(node.get("GPU", 0) for node in nodes)
    if wanted.device == "cuda" or (wanted.device == "auto" and workers is None and has_gpus):
        return Size(low, high, gpus=wanted.gpus)
    return Size(low, high, processors=workers or share([int(node.get("CPU", 0)) for node in nodes], high))


def share(processors: Sequence[int], replicas: int) -> int:
    """The most processors that each replica can have. ``processors``: those of each machine."""
    for each in range(max(processors, default=0), 0, -1):
        if sum(count // each for count in processors) >= replicas:
            return each
    raise UsageError(
        f"The cluster has {sum(processors)} processors, which is too few for {replicas} replicas.",
        "Ask for fewer replicas, or add machines.",
    )


def cause(told: str) -> str:
    """Why a replica did not start: what follows Ray's traceback."""
    errors = re.split(r"^monolane\.errors\.\w+: ", told, flags=re.M)
    return (errors[-1] if len(errors) > 1 else told.strip().rpartition("\n")[2]).strip()


def _status(name: str) -> tuple[str, int, str]:
    """Of an application: its status, how many replicas run, and what Ray says."""
    from ray import serve

    application = serve.status().applications.get(name)
    if application is None:
        return "NOT_STARTED", 0, ""
    deployments = application.deployments.values()
    running = sum(deployment.replica_states.get("RUNNING", 0) for deployment in deployments)
    return str(application.status.value), running, " ".join(deployment.message for deployment in deployments)


def _delete(name: str) -> None:
    from ray import serve

    if name in serve.status().applications:
        serve.delete(name)


def _waiting(status: str, label: str | None) -> dict[str, Any]:
    return {"status": status, "label": label, "done_bytes": 0, "total_bytes": 0, "problem": None}
