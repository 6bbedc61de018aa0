"""The routes of Ollama that front ends need: chat, generate, and what models there are."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

import monolane
from monolane.engine.answer import Answer
from monolane.engine.async_engine import AsyncEngine
from monolane.engine.chat_tokenizer import check_length
from monolane.serve.answering import respond
from monolane.serve.chat_task import ChatTask
from monolane.serve.failures import HttpError, unsupported
from monolane.serve.ollama_dialect import Clock, OllamaDialect
from monolane.serve.ollama_request import OllamaChatRequest, OllamaGenerateRequest, OllamaRequest
from monolane.serve.protocol import Liberal
from monolane.serve.served_model import ServedModel
from monolane.serve.service import Service
from monolane.serve.thinking import OPEN, ThinkingParser
from monolane.serve.tool_parser import parser_for

API_VERSION = "0.11.0"  # of Ollama, whose API this is: front ends ask for it, and want one that is new enough
NEVER = "9999-12-31T23:59:59Z"
MISSING = ("pull", "push", "create", "copy", "delete", "embed", "embeddings")


class ShowRequest(Liberal):
    model: str = ""
    name: str = ""  # the same, as older clients call it


def add_ollama(app: FastAPI, service: Service) -> None:
    _add_answers(app, service)
    _add_models(app, service)


def _add_answers(app: FastAPI, service: Service) -> None:
    async def opened(body: OllamaRequest, request: Request, is_empty: bool) -> tuple[ServedModel, Clock, str | None]:
        """The model, and, for a request that has nothing to answer, what has become of it."""
        began_s = time.perf_counter()
        name = _without_tag(service, body.model)
        unloads = is_empty and body.keep_alive_s == 0
        if unloads and not service.pool.seats[service.find(name).model_id].is_loaded:
            return service.find(name), Clock.since(began_s), "unload"
        model = await service.model(name, request.scope, body.keep_alive_s)
        return model, Clock.since(began_s), ("unload" if unloads else "load") if is_empty else None

    @app.post("/api/chat", response_model=None)
    async def chat(body: OllamaChatRequest, request: Request) -> Response:
        model, clock, became = await opened(body, request, not body.messages)
        if became is not None:
            return JSONResponse(OllamaDialect(body.model, True, clock, parser_for((), True), None).loaded(became))
        return await _answer(model, body, body.task(*_facts(model)), request, clock, True)

    @app.post("/api/generate", response_model=None)
    async def generate(body: OllamaGenerateRequest, request: Request) -> Response:
        model, clock, became = await opened(body, request, not body.prompt)
        if became is not None:
            return JSONResponse(OllamaDialect(body.model, False, clock, parser_for((), True), None).loaded(became))
        task = body.task(*_facts(model))
        if not body.raw and not body.suffix and model.engine.loaded()[0].can_chat:
            return await _answer(model, body, task, request, clock, False)
        tokens = await _plain_tokens(model.engine, body)
        grammar, left_out = await model.grammar_of(task)
        answer = model.engine.submit(tokens, task.params, grammar=grammar)
        dialect = OllamaDialect(body.model, False, clock, parser_for((), True), None)
        return await respond(model, request, answer, dialect, body.stream, [*task.warnings, *left_out])


async def _answer(
    model: ServedModel, body: OllamaRequest, task: ChatTask, request: Request, clock: Clock, is_chat: bool
) -> Response:
    if body.thinks and not model.can_think:
        raise unsupported("think", f"{model.model_id} does not support thinking.")
    sent = await model.submit(task)
    thinking = ThinkingParser(_opened(model, sent.answer)) if body.thinks else None
    dialect = OllamaDialect(body.model, is_chat, clock, sent.parser, thinking)
    return await respond(model, request, sent.answer, dialect, body.stream, sent.warnings)


def _facts(model: ServedModel) -> tuple[Any, int]:
    tokenizer, target = model.engine.loaded()
    return tokenizer.sampling, target.context


def _opened(model: ServedModel, answer: Answer) -> bool:
    """Whether the prompt ends inside the model's thoughts, as some templates have it."""
    tokenizer, _ = model.engine.loaded()
    return tokenizer.text(answer.request.tokens[-8:]).rstrip().endswith(OPEN)


async def _plain_tokens(engine: AsyncEngine, body: OllamaGenerateRequest) -> list[int]:
    """A prompt without a chat template: as it is, or with what comes after the answer."""
    if not body.suffix:
        return await engine.text_tokens("\n".join(filter(None, (body.system, body.prompt))))
    tokenizer, target = engine.loaded()
    check_length([body.prompt, body.suffix], target.context)
    return await engine.in_thread(lambda: tokenizer.infill_tokens(body.prompt, body.suffix))


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/api/version")
    async def version() -> dict[str, str]:
        return {"version": API_VERSION, "server": f"monolane {monolane.__version__}"}

    @app.get("/api/tags")
    async def tags() -> dict[str, Any]:
        made = datetime.fromtimestamp(service.created, UTC).isoformat()
        return {"models": [_named(model) | {"modified_at": made, "size": _disk(model)} for model in service.models]}

    @app.get("/api/ps")
    async def running() -> dict[str, Any]:
        return {"models": [_running(service, one) for one in service.models if _seat(service, one).is_loaded]}

    @app.post("/api/show")
    async def show(body: ShowRequest) -> dict[str, Any]:
        model = service.find(_without_tag(service, body.model or body.name))
        about, target = model.engine.about, model.engine.target
        family = about.family if about else ""
        info = {"general.architecture": family} | ({f"{family}.context_length": target.context} if target else {})
        return {
            "modelfile": "",
            "parameters": "",
            "template": about.template if about else "",
            "details": _details(model),
            "model_info": info,
            "capabilities": ["completion", *(await model.capabilities())],
        }

    for name in MISSING:
        app.add_api_route(f"/api/{name}", _missing, methods=["POST", "DELETE"], include_in_schema=False)


async def _missing() -> None:
    text = "This server has the models that it was started with, for text alone: this route is not supported."
    raise HttpError(501, text, "not_implemented")


def _without_tag(service: Service, name: str) -> str:
    """Ollama's clients add ``:latest`` to a name without a tag."""
    bare = name.removesuffix(":latest")
    return bare if any(bare in model.names for model in service.models) else name


def _seat(service: Service, model: ServedModel) -> Any:
    return service.pool.seats[model.model_id]


def _named(model: ServedModel) -> dict[str, Any]:
    # Front ends tell models apart by their digest; ours is that of the name, as files may be large.
    digest = hashlib.sha256(model.model_id.encode()).hexdigest()
    return {"name": model.model_id, "model": model.model_id, "digest": digest, "details": _details(model)}


def _details(model: ServedModel) -> dict[str, Any]:
    """As far as it is known: nothing, before a model was loaded once."""
    about = model.engine.about
    family = about.family if about else ""
    return {
        "parent_model": "",
        "format": about.file_format if about else "",
        "family": family,
        "families": [family] if family else None,
        "parameter_size": "",
        "quantization_level": about.dtype.upper() if about else "",
    }


def _disk(model: ServedModel) -> int:
    return model.engine.about.disk_bytes if model.engine.about else 0


def _running(service: Service, model: ServedModel) -> dict[str, Any]:
    target, expires_s = model.engine.target, _seat(service, model).expires_s
    held = target.memory_bytes if target else 0
    ends = NEVER if expires_s is None else (datetime.now(UTC) + timedelta(seconds=expires_s)).isoformat()
    return _named(model) | {
        "size": held,
        "size_vram": held if target and target.name.startswith("cuda") else 0,
        "expires_at": ends,
        "context_length": target.context if target else 0,
    }
