"""Answers whose pieces cost computation: several of them make one piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

__all__ = ["made_in_turn"]


def made_in_turn(answer: StreamingResponse, lock: asyncio.Semaphore) -> StreamingResponse:
    """The answer; each of its pieces is made under the lock and sent without it, so a slow reader
    delays no other."""
    pieces = aiter(answer.body_iterator)

    async def locked() -> AsyncIterator[str | bytes | memoryview]:
        while True:
            async with lock:
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
            yield piece

    answer.body_iterator = locked()
    return answer
