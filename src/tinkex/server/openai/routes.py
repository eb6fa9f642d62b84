"""The routes of the OpenAI endpoint: models, chat completions, completions."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from tinkex.errors import ServerError, TinkexError
from tinkex.server.errors import json_response, on_tinkex_error
from tinkex.server.http.openai_paths import PREFIXES
from tinkex.server.http.route_table import RouteTable
from tinkex.server.openai.chat import ChatPlan, plan_chat
from tinkex.server.openai.completions import CompletionPlan, plan_completion
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
from tinkex.server.openai.token_counts import TokenCounts
from tinkex.server.services import Services, caller, owner, services_of
from tinkex.server.submit.bodies import read_json
from tinkex.version import __version__

__all__ = ["openai_routes"]

Handler = Callable[[Request], Awaitable[Response]]
Asked = TypeVar("Asked", bound=OpenAIRequest)

_CLIENT_LEFT = 499
_FINGERPRINT = f"tinkex-{__version__}"


class Endpoint(msgspec.Struct):
    """What the endpoint remembers of one server."""

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
    """The continuation of a conversation, by the model's own chat template."""
    asked, served, text = await _read(request, ChatCompletionRequest)
    plan = await plan_chat(asked, text)
    return await _answer_chat(request, served, plan)


@answered
async def completions(request: Request) -> Response:
    """The continuation of texts or token ids, and the scores of their own tokens."""
    asked, served, text = await _read(request, CompletionRequest)
    most = services_of(request).config.limits.max_num_samples
    plan = await plan_completion(asked, text, most)
    return await _answer_completion(request, served, plan)


async def _answer_chat(request: Request, served: ServedName, plan: ChatPlan) -> Response:
    async with await _held(request, served) as held:
        sample = await held.submit(plan.sample)
        result = await held.result(sample, request)
    counts = TokenCounts()
    counts.add(plan.prompt_tokens, result)
    choices = await plan.choices(result.sequences)
    kind = ("chatcmpl", "chat.completion")
    return _whole(kind, sample.request_id, served, choices, counts)


async def _answer_completion(
    request: Request, served: ServedName, plan: CompletionPlan
) -> Response:
    counts, choices = TokenCounts(), list[dict[str, Any]]()
    async with await _held(request, served) as held:
        samples = [await held.submit(each.sample) for each in plan.prompts]
        for place, sample in enumerate(samples):
            result = await held.result(sample, request)
            prompt = plan.prompts[place]
            counts.add(len(prompt.token_ids), result, is_shown=not plan.is_scoring_only)
            choices += plan.choices(place, result)
    return _whole(("cmpl", "text_completion"), samples[0].request_id, served, choices, counts)


def _whole(
    kind: tuple[str, str],
    request_id: str,
    served: ServedName,
    choices: list[dict[str, Any]],
    counts: TokenCounts,
) -> Response:
    prefix, name = kind
    answer = {
        "id": f"{prefix}-{request_id}",
        "object": name,
        "created": int(time.time()),
        "model": served.name,
        "choices": choices,
        "usage": counts.shown(),
        "system_fingerprint": _FINGERPRINT,
    }
    return json_response(answer, headers={"x-request-id": request_id})


async def _read(request: Request, type_: type[Asked]) -> tuple[Asked, ServedName, ModelText]:
    """The body, what it samples from, and that model's text."""
    services = services_of(request)
    asked = await read_json(request, type_, services.config.limits)
    served = await find_served(services, owner(request), asked.model)
    return asked, served, await _endpoint(request).texts.get(served.info)


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
