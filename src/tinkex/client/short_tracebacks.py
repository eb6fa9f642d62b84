"""Tracebacks that show the user's lines and one of ours, in place of the way through this package.

An error of an operation was raised on the runtime's loop, deep below what the user called. Its text
says what happened; the frames between would only bury the user's line. TINKEX_DEBUG=1 keeps them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tinkex.config import process_settings
from tinkex.errors import TinkexError

__all__ = ["shortened", "with_short_traceback"]

_CARRIER_NAMES = ("asyncio", "concurrent", "aiohttp", "aiohappyeyeballs")
_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_CARRIERS = tuple(f"{os.sep}{name}{os.sep}" for name in _CARRIER_NAMES)


def shortened(error: BaseException) -> BaseException:
    """The error to raise: without the frames of this package and of what carries its calls.

    An error that is not ours is left alone: where it was raised is all there is to know of it. Of
    the causes of ours, what they say stays, and the frames of the user's own code.
    """
    if isinstance(error, TinkexError) and not process_settings().is_debug:
        for each in _chain(error):
            each.__traceback__ = _trimmed(each.__traceback__)
    return error


def with_short_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with its errors `shortened`; it may be a coroutine function."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*arguments: Any, **options: Any) -> Any:
            try:
                return await method(*arguments, **options)
            except TinkexError as error:
                raise shortened(error) from error.__cause__

        return call_async

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except TinkexError as error:
            raise shortened(error) from error.__cause__

    return call


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what a traceback prints before it."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not _is_hidden(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def _is_hidden(file: str) -> bool:
    return file.startswith(_PACKAGE) or any(part in file for part in _CARRIERS)
