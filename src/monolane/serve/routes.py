"""The routes: OpenAI's three, Anthropic's, and those that users of vLLM know besides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

import monolane
from monolane.engine.answer import Answer
from monolane.engine.state import EngineState
from monolane.errors import UsageError
from monolane.serve import metrics
from monolane.serve.answering import respond, warning_headers, whole
from monolane.serve.chat_dialect import ChatDialect
from monolane.serve.chat_request import ChatMessage, ChatRequest, RenderingFields, Tool
from monolane.serve.chat_task import MAX_TOOLS
from monolane.serve.completions import MAX_PROMPT_TOKENS, CompletionDialect, CompletionRequest, joined, tokens_of
from monolane.serve.failures import HttpError
from monolane.serve.messages_dialect import MessagesDialect
from monolane.serve.messages_request import CountRequest, MessagesRequest
from monolane.serve.protocol import MAX_MESSAGES, Strict
from monolane.serve.responses_dialect import ResponsesDialect
from monolane.serve.responses_request import ResponsesRequest
from monolane.serve.served_model import ServedModel
from monolane.serve.service import LOG_SAYS, Service
from monolane.serve.thinking import ThinkingParser


class TokenizeRequest(RenderingFields):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_PROMPT_TOKENS)]


def add_routes(app: FastAPI, service: Service) -> None:
    for add in (_add_openai, _add_anthropic, _add_tokens, _add_state):
        add(app, service)


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        model = await service.model(body.model, request.scope)
        sent = await model.submit(body.task())
        tokenizer, _ = model.engine.loaded()
        thinking = ThinkingParser() if tokenizer.speaks_harmony else None
        dialect = ChatDialect(model.model_id, model.token_json, sent.answer, sent.parser, body.stream_options, thinking)
        return await respond(model, request, sent.answer, dialect, body.stream, sent.warnings)

    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model = await service.model(body.model, request.scope)
        prompts = [await tokens_of(model.engine, body, prompt) for prompt in body.prompts()]

        def submit(tokens: list[int]) -> tuple[Answer, CompletionDialect]:
            answer = model.engine.submit(tokens, body.params(), prompt_logprobs=body.prompt_logprobs)
            return answer, CompletionDialect(model.model_id, model.token_json, answer, body)

        if len(prompts) == 1:
            answer, dialect = submit(prompts[0])
            return await respond(model, request, answer, dialect, body.stream, body.warnings())
        bodies = []
        for tokens in prompts:  # one after the other, so that others have their turn in between
            answer, dialect = submit(tokens)
            bodies.append(dialect.whole(await whole(model, request, answer)))
        return JSONResponse(joined(bodies), headers=warning_headers(body.warnings()))

    @app.post("/v1/embeddings", response_model=None)
    async def embeddings() -> Response:
        raise HttpError(501, f"{service.first.model_id} writes text: this server has no embeddings.", "not_implemented")

    @app.post("/v1/responses", response_model=None)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        model = await service.model(body.model, request.scope)
        sent = await model.submit(body.task())
        dialect = ResponsesDialect(model.model_id, body, sent.parser)
        return await respond(model, request, sent.answer, dialect, body.stream, sent.warnings)


def _add_anthropic(app: FastAPI, service: Service) -> None:
    @app.post("/v1/messages", response_model=None)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        model = await service.model(body.model, request.scope)
        sent = await model.submit(body.task())
        dialect = MessagesDialect(model.model_id, sent.answer, sent.parser)
        return await respond(model, request, sent.answer, dialect, body.stream, sent.warnings)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
        model = await service.model(body.model, request.scope)
        return {"input_tokens": len(await model.engine.chat_tokens(body.plain_messages(), body.plain_tools()))}


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
        model = await service.model(body.model, request.scope)
        if (body.prompt is None) == (body.messages is None):
            raise UsageError("Neither or both of prompt and messages are given.", "Give one of them.")
        if body.messages is not None:
            messages = [message.plain() for message in body.messages]
            tools = [tool.plain() for tool in body.tools]
            tokens = await model.engine.chat_tokens(messages, tools, body.rendering())
        else:
            tokens = await model.engine.text_tokens(body.prompt or "", body.add_special_tokens)
        return {"count": len(tokens), "max_model_len": model.context, "tokens": tokens}

    @app.get("/tokenizer_info")
    async def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
        tokenizer, target = (await service.model(model, request.scope)).engine.loaded()
        return tokenizer.info() | {"model_max_length": target.context}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
        model = await service.model(body.model, request.scope)
        return {"prompt": await model.engine.text(body.tokens)}


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        several = (
            {}
            if len(service.models) == 1
            else {"models": {one.model_id: _fields_for_all(state) for one, state in service.described()}}
        )
        if (state := service.trouble) is None:
            return JSONResponse({"status": "ok"} | several)
        return JSONResponse(_fields(state) | several, 503, {"Retry-After": "1"})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        cards = [_card(service, model, name) for model in service.models for name in model.names]
        names = [card["id"] for card in cards]
        return {"object": "list", "data": cards, "first_id": names[0], "last_id": names[-1], "has_more": False}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        return _card(service, service.find(model_id), model_id)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": monolane.__version__}

    @app.get("/metrics", response_class=Response)
    async def numbers() -> Response:
        return Response(service.metrics.text(), media_type=metrics.TYPE)


def _fields(state: EngineState) -> dict[str, Any]:
    return {field: getattr(state, field) for field in ("status", "label", "done_bytes", "total_bytes", "problem")}


def _fields_for_all(state: EngineState) -> dict[str, Any]:
    """Of one of several models. Why one could not be loaded is for the log: it may name files of this machine."""
    return _fields(state) | ({"problem": LOG_SAYS} if state.status == "failed" else {})


def _card(service: Service, model: ServedModel, name: str) -> dict[str, Any]:
    """A model as OpenAI, vLLM and Anthropic describe one. The context of one of several is not known before it was
    loaded once."""
    if service.trouble is not None and service.first.engine.target is None:
        raise service.first.engine.not_ready()
    target = model.engine.target
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "monolane",
        "root": model.model_id,
        "max_model_len": None if target is None else target.context,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z"),
    }
