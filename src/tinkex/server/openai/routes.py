"""The routes of the OpenAI endpoint: models, chat completions, completions."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from tinkex.errors import ServerError, TinkexError
from tinkex.server.errors import json_response, on_tinkex_error
from tinkex.server.http.openai_paths import PREFIXES
from tinkex.server.http.route_table import RouteTable
from tinkex.server.openai.answers import answer_chat, answer_completion
from tinkex.server.openai.chat import plan_chat
from tinkex.server.openai.completions import plan_completion
from tinkex.server.openai.errors import error_answer
from tinkex.server.openai.held_samples import ClientLeft, HeldSamples
from tinkex.server.openai.model_text import ModelText, ModelTexts
from tinkex.server.openai.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    OpenAIRequest,
)
from tinkex.server.openai.sampling_sessions import EndpointSamplers
from tinkex.server.openai.served_models import ServedName, find_served, list_served, shown_model
from tinkex.server.services import Services, caller, owner, services_of
from tinkex.server.submit.bodies import read_json

__all__ = ["openai_routes"]

Handler = Callable[[Request], Awaitable[Response]]
Body = TypeVar("Body", bound=OpenAIRequest)

_CLIENT_LEFT = 499


class Endpoint(msgspec.Struct):
    """State of the endpoint in one server."""

    samplers: EndpointSamplers
    texts: ModelTexts


def answered(handler: Handler) -> Handler:
    """The handler, its errors in OpenAI's form."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except TinkexError as error:
            if isinstance(error, ServerError):
                await on_tinkex_error(request, error)  # logs it
            return error_answer(error)
        except ClientLeft:
            return Response(status_code=_CLIENT_LEFT)

    return answer


@answered
async def models(request: Request) -> Response:
    """Base models and the caller's saved samplers, as OpenAI's clients list models."""
    found = await list_served(services_of(request), owner(request))
    return json_response({"object": "list", "data": found})


@answered
async def model(request: Request) -> Response:
    """One base model or checkpoint, by any name that requests may use."""
    me, name = owner(request), request.path_params["name"]
    return json_response(shown_model(await find_served(services_of(request), me, name), me))


@answered
async def chat_completions(request: Request) -> Response:
    """Continues a conversation, rendered by the model's own chat template."""
    body, served, text = await _read(request, ChatCompletionRequest)
    plan = await plan_chat(body, text)
    return await answer_chat(request, await _held(request, served), served.name, plan)


@answered
async def completions(request: Request) -> Response:
    """Continues texts or token ids; with `echo` also returns their own logprobs."""
    body, served, text = await _read(request, CompletionRequest)
    most = services_of(request).config.limits.max_num_samples
    plan = await plan_completion(body, text, most)
    return await answer_completion(request, await _held(request, served), served.name, plan)


async def _read(request: Request, type_: type[Body]) -> tuple[Body, ServedName, ModelText]:
    """The body, the model it names, and that model's tokenizer."""
    services = services_of(request)
    body = await read_json(request, type_, services.config.limits)
    served = await find_served(services, owner(request), body.model)
    return body, served, await _endpoint(request).texts.get(served.info)


async def _held(request: Request, served: ServedName) -> HeldSamples:
    services, samplers = services_of(request), _endpoint(request).samplers
    sampler = await samplers.get(owner(request), served)
    return HeldSamples(services, samplers, sampler, caller(request).key_id)


def _endpoint(request: Request) -> Endpoint:
    state, services = request.scope["app"].state, services_of(request)
    if not hasattr(state, "openai"):
        state.openai = _made(services)
    endpoint: Endpoint = state.openai
    return endpoint


def _made(services: Services) -> Endpoint:
    return Endpoint(samplers=EndpointSamplers(services), texts=ModelTexts())


ROUTES = [
    Route("/models", models),
    Route("/models/{name:path}", model),
    Route("/chat/completions", chat_completions, methods=["POST"]),
    Route("/completions", completions, methods=["POST"]),
]


def openai_routes() -> list[BaseRoute]:
    """The routes under each of their prefixes."""
    tables = [RouteTable(prefix, ROUTES) for prefix in PREFIXES]
    return [*tables, *(Mount(prefix, routes=ROUTES) for prefix in PREFIXES)]
