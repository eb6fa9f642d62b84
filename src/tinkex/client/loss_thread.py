"""Running a user's loss in a thread of its own, so that neither the caller nor the loop waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

from tinkex.errors import TinkexError

__all__ = ["run_loss"]

T = TypeVar("T")


async def run_loss(work: Callable[[], T], context: Context, threads: set[int]) -> T:
    """The result of `work`, with the context variables of the caller.

    `threads` has the thread's id as long as it runs. A daemon thread, because a loss that never
    ends must not keep a program from ending.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        threads.add(threading.get_ident())
        try:
            done.set_result(context.run(work))
        except Exception as error:
            done.set_exception(error)
        except BaseException as error:  # a SystemExit would end the loop of every client
            done.set_exception(_ended(error))
        finally:
            threads.discard(threading.get_ident())

    threading.Thread(target=run, name="tinkex-loss", daemon=True).start()
    return await asyncio.wrap_future(done)


def _ended(error: BaseException) -> TinkexError:
    wrapped = TinkexError(f"The custom loss ended with {type(error).__name__}: {error}.")
    wrapped.__cause__ = error
    return wrapped
