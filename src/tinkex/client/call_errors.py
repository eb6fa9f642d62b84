"""Bad input to a call that returns a Future is that Future's error: `outcome()` never raises.

So errors of the client, the server and the work itself are handled alike. An error that is never
read is logged, as asyncio does: a refused batch is not in the gradient.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tinkex.client.futures import Future
from tinkex.client.short_tracebacks import with_short_traceback
from tinkex.client.submit_site import submit_site, with_site
from tinkex.client.tracing import traced_call
from tinkex.errors import TinkexError

__all__ = ["errors_in_futures"]

C = TypeVar("C", bound=type)
log = logging.getLogger("tinkex")


class _Refusal(concurrent.futures.Future[Any]):
    """The handle of a call that was refused."""

    def __init__(self, call: str, error: BaseException) -> None:
        super().__init__()
        self._call = call
        self._is_seen = False
        self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self._is_seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._is_seen = True
        return super().exception(timeout)

    def __del__(self) -> None:
        if not self._is_seen:
            error = super().exception()
            log.error("%s was refused, and its outcome was never read: %s", self._call, error)


def errors_in_futures(client: C) -> C:
    """The class, with a failed Future from each public method that gives one and would raise.

    What its other methods raise has a short traceback.
    """
    for name, member in list(vars(client).items()):
        if not inspect.isfunction(member) or (name.startswith("_") and name != "__init__"):
            continue
        if _gives_future(member):
            setattr(client, name, _with_error_in_future(member))
        elif not (inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)):
            setattr(client, name, with_short_traceback(member))
    return client


def _gives_future(method: Callable[..., Any]) -> bool:
    gives = method.__annotations__.get("return", "")
    return str(gives).startswith("Future[") and not inspect.iscoroutinefunction(method)


def _with_error_in_future(method: Callable[..., Any]) -> Callable[..., Any]:
    def attempt(client: object, *arguments: Any, **options: Any) -> Any:
        try:
            return method(client, *arguments, **options)
        except TinkexError as error:
            noted = with_site(error, submit_site())
            return Future(_Refusal(_call_name(client, method), noted))

    @functools.wraps(method)
    def call(client: object, *arguments: Any, **options: Any) -> Any:
        if "opentelemetry.trace" not in sys.modules:
            return attempt(client, *arguments, **options)
        name = _call_name(client, method)
        return traced_call(name, lambda: attempt(client, *arguments, **options))

    return call


def _call_name(client: object, method: Callable[..., Any]) -> str:
    """What the caller wrote, whichever base class the method is from."""
    return f"{type(client).__name__}.{method.__name__}"
