"""The event loop of a runtime's thread: runs until it is stopped, then cancels what is left."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["call_soon", "cancel_all", "run_loop"]

log = logging.getLogger("tinkex")

CANCEL_ROUNDS = 10


def call_soon(loop: asyncio.AbstractEventLoop, fn: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(fn)


def run_loop(loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    loop.call_soon(ready.set)
    try:
        while not _ran_until_stopped(loop):
            pass
        loop.run_until_complete(cancel_all(lambda: asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _ran_until_stopped(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop was stopped; False if a user's callback tried to end the process.

    `sys.exit()` in a callback would otherwise end this thread, and all waits with it.
    """
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt) as error:
        log.error("a callback raised %s on the runtime's thread; it goes on", repr(error))
        return False
    return True


async def cancel_all(tasks: Callable[[], Iterable[asyncio.Task[Any]]]) -> None:
    """Cancels tasks until none is left; one that is cancelled may begin another to clean up."""
    for _ in range(CANCEL_ROUNDS):
        own = asyncio.current_task()
        alive = [task for task in tasks() if not task.done() and task is not own]
        if not alive:
            return
        for task in alive:
            task.cancel()
        await asyncio.gather(*alive, return_exceptions=True)
