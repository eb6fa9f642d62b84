"""Sides that several questions of one run share: started at the first use, ended with the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class _Kept:
    """Open sides, by the function and arguments that made them."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._found: dict[object, Any] = {}

    def get(self, make: Callable[..., AbstractContextManager[T]], *arguments: object) -> T:
        """Returns `make(*arguments)`, opened once for the whole run."""
        key = (make, arguments)
        if key not in self._found:
            self._found[key] = self._opened.enter_context(make(*arguments))
        found: T = self._found[key]
        return found

    def __enter__(self) -> _Kept:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._found.clear()
        self._opened.__exit__(kind, error, trace)


kept = _Kept()
