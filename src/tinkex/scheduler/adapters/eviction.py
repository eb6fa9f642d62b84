"""Room in the engine: when an adapter or sampler does not fit, others that can come back leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tinkex.engine.interface import EngineUserError

T = TypeVar("T")


class Room:
    """Who can make room, in the order they are asked. Used by the driver's thread only."""

    def __init__(self) -> None:
        self._givers: list[Callable[[], bool]] = []

    def ask_also(self, give: Callable[[], bool]) -> None:
        """Adds a giver: it frees one thing that is not in use and says whether it could."""
        self._givers.append(give)

    def fit(self, load: Callable[[], T]) -> T:
        """What `load` returns, tried again as long as somebody can make room for it.

        Raises:
            EngineUserError: the engine is full of what is in use, or refused for another reason.
        """
        while True:
            try:
                return load()
            except EngineUserError as error:
                if error.code != "engine-full" or not any(give() for give in self._givers):
                    raise
