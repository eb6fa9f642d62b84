"""Responses of both endpoints, complete or streamed: the fields around their choices."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tinkex.errors import ServerError, TinkexError
from tinkex.server.errors import json_response, on_tinkex_error
from tinkex.server.openai.chat import ChatPlan
from tinkex.server.openai.chat_stream import ChatStream
from tinkex.server.openai.completion_stream import CompletionStream
from tinkex.server.openai.completions import CompletionPlan
from tinkex.server.openai.errors import error_answer
from tinkex.server.openai.event_stream import COMMENT, DONE, OpenAIStream, event
from tinkex.server.openai.held_samples import HeldSamples
from tinkex.server.openai.token_counts import TokenCounts
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest
from tinkex.types.sample_stream import SampleDelta
from tinkex.types.sampling import SampleResponse
from tinkex.version import __version__

__all__ = ["answer_chat", "answer_completion"]

_FINGERPRINT = f"tinkex-{__version__}"


class GrowingAnswer(Protocol):
    """The choices for one sample as they grow."""

    def begin(self) -> list[dict[str, Any]]: ...
    async def add(self, delta: SampleDelta) -> list[dict[str, Any]]: ...


class CountedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a request, and how many tokens its prompt has."""

    sample: SampleRequest
    num_tokens: int


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that every response and every streamed chunk has."""

    kind: str
    id: str
    model: str

    def around(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The response, or one chunk of it, with these choices."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": choices,
            **more,
        }


async def answer_chat(request: Request, held: HeldSamples, model: str, plan: ChatPlan) -> Response:
    """The response to a chat request; closes `held`."""
    prompts = [CountedPrompt(sample=plan.sample, num_tokens=plan.prompt_tokens)]
    if plan.request.stream:
        options = plan.request.stream_options
        stream = _Stream(
            ("chatcmpl", "chat.completion.chunk", model),
            held,
            has_usage=bool(options and options.include_usage),
        )
        return await stream.answer(request, prompts, [ChatStream(plan)])
    async with held:
        sample = await held.submit(plan.sample)
        result = await held.result(sample, request)
    counts = TokenCounts()
    counts.add(plan.prompt_tokens, result)
    frame = _frame(("chatcmpl", "chat.completion", model), sample)
    return _whole(frame, await plan.choices(result.sequences), counts, sample)


async def answer_completion(
    request: Request, held: HeldSamples, model: str, plan: CompletionPlan
) -> Response:
    """The response to a completion request; closes `held`."""
    prompts = [CountedPrompt(sample=p.sample, num_tokens=len(p.token_ids)) for p in plan.prompts]
    kind = ("cmpl", "text_completion", model)
    if plan.request.stream:
        options = plan.request.stream_options
        stream = _Stream(
            kind,
            held,
            has_usage=bool(options and options.include_usage),
            is_shown=not plan.is_scoring_only,
        )
        growing = [CompletionStream(plan, place) for place in range(len(prompts))]
        return await stream.answer(request, prompts, growing)
    counts, choices = TokenCounts(), list[dict[str, Any]]()
    async with held:
        samples = [await held.submit(each.sample) for each in prompts]
        for place, sample in enumerate(samples):
            result = await held.result(sample, request)
            counts.add(prompts[place].num_tokens, result, is_shown=not plan.is_scoring_only)
            choices += plan.choices(place, result)
    return _whole(_frame(kind, samples[0]), choices, counts, samples[0])


def _frame(kind: tuple[str, str, str], sample: Sample) -> Frame:
    prefix, name, model = kind
    return Frame(kind=name, id=f"{prefix}-{sample.request_id}", model=model)


def _whole(
    frame: Frame, choices: list[dict[str, Any]], counts: TokenCounts, sample: Sample
) -> Response:
    answer = frame.around(choices, usage=counts.shown())
    return json_response(answer, headers={"x-request-id": sample.request_id})


class _Stream:
    """One streamed response. Prompts are sampled together and sent one after the other."""

    def __init__(
        self,
        kind: tuple[str, str, str],
        held: HeldSamples,
        *,
        has_usage: bool,
        is_shown: bool = True,
    ) -> None:
        self._kind = kind
        self._held = held
        self._more: dict[str, Any] = {"usage": None} if has_usage else {}
        self._counts = TokenCounts()
        self._is_shown = is_shown

    async def answer(
        self, request: Request, prompts: list[CountedPrompt], growing: Sequence[GrowingAnswer]
    ) -> Response:
        """The response, once its first chunk exists: an earlier failure is an HTTP error."""
        async with AsyncExitStack() as stack:
            held = await stack.enter_async_context(self._held)
            samples = [await held.submit(each.sample) for each in prompts]
            steps = self._steps(samples, prompts, growing)
            await stack.enter_async_context(aclosing(steps))
            first = await held.first_step(steps, request)
            events = self._events(request, _frame(self._kind, samples[0]), first, steps)
            return OpenAIStream(events, stack.pop_all(), samples[0].request_id)
        raise AssertionError("unreachable")

    async def _steps(
        self, samples: list[Sample], prompts: list[CountedPrompt], growing: Sequence[GrowingAnswer]
    ) -> AsyncGenerator[list[dict[str, Any]] | None, None]:
        """The chunks that are available, together; None on every heartbeat without one."""
        for sample, prompt, answer in zip(samples, prompts, growing, strict=True):
            pieces = answer.begin()
            steps = self._held.follow(sample)
            async with aclosing(steps):
                async for step in steps:
                    if isinstance(step, SampleResponse):
                        self._counts.add(prompt.num_tokens, step, is_shown=self._is_shown)
                    elif step is None:
                        yield None
                    else:
                        for delta in step:
                            pieces += await answer.add(delta)
                        yield pieces
                        pieces = []

    async def _events(
        self,
        request: Request,
        frame: Frame,
        first: list[dict[str, Any]] | None,
        steps: AsyncGenerator[list[dict[str, Any]] | None, None],
    ) -> AsyncGenerator[bytes, None]:
        yield self._event(frame, first)
        try:
            async for step in steps:
                yield self._event(frame, step)
        except TinkexError as error:
            if isinstance(error, ServerError):
                await on_tinkex_error(request, error)  # logs it
            yield b"data: " + bytes(error_answer(error).body) + b"\n\n"
            return
        if self._more:
            yield event(frame.around([], usage=self._counts.shown()))
        yield DONE

    def _event(self, frame: Frame, pieces: list[dict[str, Any]] | None) -> bytes:
        if pieces is None:
            return COMMENT
        return b"".join([event(frame.around([piece], **self._more)) for piece in pieces])
