"""What the routes share: the models, the pool of their engines, and the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from starlette.types import Scope

from monolane.engine.async_engine import AsyncEngine
from monolane.engine.pool import FOREVER, WAIT_S, EnginePool
from monolane.engine.state import EngineState
from monolane.errors import MonolaneError, NotEnoughMemoryError, UnavailableError
from monolane.serve.failures import HttpError
from monolane.serve.leases import hold
from monolane.serve.metrics import Metrics
from monolane.serve.request_log import note
from monolane.serve.served_model import ServedModel
from monolane.serve.structured_output import GrammarCompiler

LOG_SAYS = "the server's log says why."


class Service:
    """``engines`` by the names of their models; the first is loaded from the start on, and answers requests that name
    none. ``aliases``: further names of a model. ``ceiling`` gives the measured read bandwidth of the machine in
    bytes/s; None where it was not measured. ``keep_alive_s``: that of the pool."""

    def __init__(
        self,
        engines: Mapping[str, AsyncEngine],
        ceiling: Callable[[], float | None] = lambda: None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        keep_alive_s: float = FOREVER,
    ) -> None:
        self.created = int(time.time())  # seconds since 1970
        self.grammars = GrammarCompiler()
        self.ceiling = ceiling
        self.metrics = Metrics(engines, ceiling)
        # A single model that stays is there from the start on: who comes before is told so, and does not wait.
        on_demand = len(engines) > 1 or keep_alive_s != FOREVER
        self.pool = EnginePool(engines, keep_alive_s=keep_alive_s, wait_s=WAIT_S if on_demand else 0.0)
        self.models = [
            ServedModel(engine, name, (aliases or {}).get(name, ()), self.grammars, self.metrics.of(name), ceiling)
            for name, engine in engines.items()
        ]
        self._by_name = {name: model for model in self.models for name in model.names}
        self._started = False

    @property
    def first(self) -> ServedModel:
        return self.models[0]

    def find(self, name: str | None) -> ServedModel:
        """The model that goes by this name; HttpError where there is none."""
        if name is None:
            return self.first
        if (found := self._by_name.get(name)) is None:
            served = ", ".join(repr(model.model_id) for model in self.models)
            message = f"This server has no model {name!r}; it serves {served}."
            raise HttpError(404, message, param="model", code="model_not_found")
        return found

    async def model(self, name: str | None, scope: Scope, keep_alive_s: float | None = None) -> ServedModel:
        """The model for a request, loaded, and not unloaded before its response has ended."""
        found = self.find(name)
        try:
            await hold(scope, self.pool.lease(found.model_id, keep_alive_s))
        except UnavailableError:
            raise
        except MonolaneError as error:  # whatever it is, the client has not caused it
            # Numbers are for everyone; other errors name files of this machine.
            why = " ".join(str(error).split("\n")) if isinstance(error, NotEnoughMemoryError) else LOG_SAYS
            message = f"{found.model_id} could not be loaded: {why}"
            raise HttpError(500, message, "server_error", code="model_load_failed") from error
        if len(self.models) > 1:
            note(scope, model=found.model_id)
        return found

    async def start(self) -> None:
        """Load the first model; raise what went wrong."""
        await self.pool.start()
        self._started = True

    @property
    def trouble(self) -> EngineState | None:
        """The state of the first engine where the server cannot answer: it loads, or the only one restarts."""
        state = self.first.engine.state
        is_idle = self._started and (len(self.models) > 1 or state.status == "unloaded")
        return None if is_idle or state.status == "ready" else state

    def described(self) -> Iterator[tuple[ServedModel, EngineState]]:
        """All models, and how they are."""
        for model in self.models:
            yield model, model.engine.state

    async def close(self, drain_s: float) -> None:
        await self.pool.close(drain_s)
        self.grammars.close()
