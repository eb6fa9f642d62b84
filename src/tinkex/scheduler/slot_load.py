"""How much an engine slot has to do: the share of the last seconds in which it worked.

Pure; the caller passes the time. One thread records, any thread may read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal

from tinkex.engine.interface import ROLES, Role

__all__ = ["BUSY_SHARE", "Doing", "SlotLoad"]

Doing = Literal["training", "sampling", "idle"]

BUSY_SHARE = 0.7
"""A slot that works for a larger share of its time gets no new models while others work less."""

_IDLE_SHARE = 0.02
"""A slot that works for a smaller share of its time is shown as idle."""

_WINDOW_S = 5.0
"""Time constant of the share: what was this long ago counts a third of what is now."""


class SlotLoad:
    """The load of one slot, and whether it takes more.

    `is_up` says whether its engine can be given work, `starting_s` for how long its thread has
    waited for another engine to start, None if it does not. `roles` are those of its worker;
    all roles while there is none. `is_draining`: its models are moved to other slots and it takes
    none. After a failed move it keeps its models until `keeps_until`. `in_use` are the models that
    its thread works on now; None means that it may be any of them.
    """

    def __init__(self) -> None:
        self.is_up: Callable[[], bool] = lambda: True
        self.starting_s: Callable[[], float | None] = lambda: None
        self.is_draining = False
        self.roles: tuple[Role, ...] = ROLES
        self.in_use: Collection[str] | None = None
        self.keeps_until = 0.0
        self.last_work: Literal["train", "sample"] = "train"
        self._state = (0.0, 0.0, False)  # share, as of this time; whether it works since then

    @property
    def is_computing(self) -> bool:
        """Whether the slot's thread works on models that it has said."""
        return bool(self.in_use)

    @property
    def can_take(self) -> bool:
        """Whether work of its roles may be given to the slot."""
        return not self.is_draining and self.is_up()

    @property
    def trains(self) -> bool:
        """Whether models may be given to the slot, as soon as it can take any."""
        return "train" in self.roles

    @property
    def should_be_empty(self) -> bool:
        """Whether the slot should have no models."""
        return self.is_draining or not self.trains

    def may_lose(self, model_id: str) -> bool:
        """Whether another slot may have the model at once: this one has no engine."""
        is_known = self.in_use is not None and model_id not in self.in_use
        return is_known and self.starting_s() is not None

    def begin(self, now: float) -> None:
        """Records that the slot begins to work."""
        self._state = (self.busy(now), now, True)

    def end(self, now: float) -> None:
        """Records that the slot has nothing to do, or chooses what to do next."""
        self._state = (self.busy(now), now, False)

    def doing(self, now: float) -> Doing:
        """What the slot does, for displays that refresh every few seconds: between two short slices
        of sampling it is not idle."""
        if self.busy(now) < _IDLE_SHARE:
            return "idle"
        return "training" if self.last_work == "train" else "sampling"

    def busy(self, now: float) -> float:
        """The share of the last seconds in which the slot worked, from 0 to 1."""
        share, at, is_working = self._state
        faded = math.exp(-max(0.0, now - at) / _WINDOW_S)
        return 1 - (1 - share) * faded if is_working else share * faded
