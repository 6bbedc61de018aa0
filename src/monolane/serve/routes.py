"""The routes: OpenAI's three, Anthropic's, and those that users of vLLM know besides."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

import monolane
from monolane.errors import UsageError
from monolane.serve import metrics
from monolane.serve.answering import respond
from monolane.serve.chat_dialect import ChatDialect
from monolane.serve.chat_request import ChatMessage, ChatRequest, RenderingFields, Tool
from monolane.serve.completions import MAX_PROMPT_TOKENS, CompletionDialect, CompletionRequest
from monolane.serve.messages_dialect import MessagesDialect
from monolane.serve.messages_request import CountRequest, MessagesRequest
from monolane.serve.protocol import MAX_MESSAGES, Strict
from monolane.serve.responses_dialect import ResponsesDialect
from monolane.serve.responses_request import ResponsesRequest
from monolane.serve.service import MAX_TOOLS, Service


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
        service.check_model(body.model)
        sent = await service.submit(body.task())
        dialect = ChatDialect(service.model_id, service.token_json, sent.answer, sent.parser, body.stream_options)
        return await respond(service, request, sent.answer, dialect, body.stream, sent.warnings)

    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service.check_model(body.model)
        answer = await service.engine.complete(body.one_prompt(), body.params())
        dialect = CompletionDialect(service.model_id, service.token_json, answer, body.stream_options)
        return await respond(service, request, answer, dialect, body.stream)

    @app.post("/v1/responses", response_model=None)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        service.check_model(body.model)
        sent = await service.submit(body.task())
        dialect = ResponsesDialect(service.model_id, body, sent.parser)
        return await respond(service, request, sent.answer, dialect, body.stream, sent.warnings)


def _add_anthropic(app: FastAPI, service: Service) -> None:
    @app.post("/v1/messages", response_model=None)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        service.check_model(body.model)
        sent = await service.submit(body.task())
        dialect = MessagesDialect(service.model_id, sent.answer, sent.parser)
        return await respond(service, request, sent.answer, dialect, body.stream, sent.warnings)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest) -> dict[str, int]:
        service.check_model(body.model)
        return {"input_tokens": len(await service.engine.chat_tokens(body.plain_messages(), body.plain_tools()))}


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise UsageError("Neither or both of prompt and messages are given.", "Give one of them.")
        if body.messages is not None:
            messages = [message.plain() for message in body.messages]
            tools = [tool.plain() for tool in body.tools]
            tokens = await service.engine.chat_tokens(messages, tools, body.rendering())
        else:
            tokens = await service.engine.text_tokens(body.prompt or "", body.add_special_tokens)
        return {"count": len(tokens), "max_model_len": service.context, "tokens": tokens}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        service.check_model(body.model)
        return {"prompt": await service.engine.text(body.tokens)}


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        state = service.engine.state
        if state.status == "ready":
            return JSONResponse({"status": "ok"})
        fields = ("status", "label", "done_bytes", "total_bytes", "problem")
        return JSONResponse({field: getattr(state, field) for field in fields}, 503, {"Retry-After": "1"})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(service)]}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        service.check_model(model_id)
        return _card(service)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": monolane.__version__}

    @app.get("/metrics", response_class=Response)
    async def numbers() -> Response:
        return Response(service.metrics.text(), media_type=metrics.TYPE)


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "monolane",
        "max_model_len": service.context,
    }
