"""How the loopback service answers those who wait: long polls, announcements, queue states."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.answers import Refusal, as_json
from tests.support.http_server import Request, Response
from tests.support.state import Promise, Sampler, World

HOLD_S = 20.0


@dataclass(kw_only=True)
class FutureCalls:
    """The service's calls about promises."""

    hold_s: float = HOLD_S
    """How long a poll is kept open."""
    queue_state: str = "active"
    queue_state_reason: str | None = None
    inline_limit_bytes: int | None = None
    """Results above this size are first announced, then fetched."""
    world: World = field(default_factory=World)

    if TYPE_CHECKING:

        def sampler(self, request: Request, sampler_id: str) -> Sampler: ...

    async def _retrieve_future(self, request: Request, body: Any) -> Response:
        promise = self._promise(body["request_id"])
        if not promise.done.is_set():
            try:
                await asyncio.wait_for(promise.done.wait(), self.hold_s)
            except TimeoutError:
                reason = self.queue_state_reason
                state = {"queue_state": self.queue_state, "queue_state_reason": reason}
                return as_json({k: v for k, v in state.items() if v is not None}, 408)
        assert promise.answer is not None
        size = len(promise.answer.body)
        limit = self.inline_limit_bytes
        if limit is not None and size > limit and body.get("allow_metadata_only"):
            return as_json({"status": "complete_metadata", "response_payload_size": size})
        promise.fetches += 1
        return promise.answer

    async def _retrieve_futures(self, request: Request, body: Any) -> Response:
        sampler = self.sampler(request, body["target"]["sampling_session_id"])
        cursor = body["prev_cursor"]
        deadline = asyncio.get_running_loop().time() + self.hold_s
        while True:
            finished = [
                promise
                for promise in self.world.promises.values()
                if promise.kind == "asample"
                and promise.content["sampling_session_id"] == sampler.sampler_id
                and promise.done.is_set()
            ]
            if len(finished) > cursor or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.005)
        completions = [
            {"state": "finished", "request_id": promise.request_id} for promise in finished[cursor:]
        ]
        return as_json({"cursor": len(finished), "completions": completions})

    def _cancel_future(self, request: Request, body: Any) -> Response:
        self._promise(body["request_id"]).is_cancelled = True
        return Response(204)

    def _promise(self, request_id: str) -> Promise:
        promise = self.world.promises.get(request_id)
        if promise is None:
            raise Refusal(404, f"no such request: {request_id}")
        return promise
