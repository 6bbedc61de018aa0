"""The routes: OpenAI's three, Anthropic's, and those that users of vLLM know besides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

import monolane
from monolane.engine.answer import Answer
from monolane.errors import UsageError
from monolane.serve import metrics
from monolane.serve.answering import respond, warning_headers, whole
from monolane.serve.chat_dialect import ChatDialect
from monolane.serve.chat_request import ChatMessage, ChatRequest, RenderingFields, Tool
from monolane.serve.completions import MAX_PROMPT_TOKENS, CompletionDialect, CompletionRequest, joined, tokens_of
from monolane.serve.failures import HttpError
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
        prompts = [await tokens_of(service.engine, body, prompt) for prompt in body.prompts()]

        def submit(tokens: list[int]) -> tuple[Answer, CompletionDialect]:
            answer = service.engine.submit(tokens, body.params(), prompt_logprobs=body.prompt_logprobs)
            return answer, CompletionDialect(service.model_id, service.token_json, answer, body)

        if len(prompts) == 1:
            answer, dialect = submit(prompts[0])
            return await respond(service, request, answer, dialect, body.stream, body.warnings())
        bodies = []
        for tokens in prompts:  # one after the other, so that others have their turn in between
            answer, dialect = submit(tokens)
            bodies.append(dialect.whole(await whole(service, request, answer)))
        return JSONResponse(joined(bodies), headers=warning_headers(body.warnings()))

    @app.post("/v1/embeddings", response_model=None)
    async def embeddings() -> Response:
        raise HttpError(501, f"{service.model_id} writes text: this server has no embeddings.", "not_implemented")

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

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        tokenizer, target = service.engine.loaded()
        return tokenizer.info() | {"model_max_length": target.context}

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
        names = service.names
        cards = [_card(service, name) for name in names]
        return {"object": "list", "data": cards, "first_id": names[0], "last_id": names[-1], "has_more": False}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        service.check_model(model_id)
        return _card(service, model_id)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": monolane.__version__}

    @app.get("/metrics", response_class=Response)
    async def numbers() -> Response:
        return Response(service.metrics.text(), media_type=metrics.TYPE)


def _card(service: Service, name: str) -> dict[str, Any]:
    """A model as OpenAI, vLLM and Anthropic describe one."""
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "monolane",
        "root": service.model_id,
        "max_model_len": service.context,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z"),
    }
