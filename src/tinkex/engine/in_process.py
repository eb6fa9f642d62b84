"""The process methods of the `Engine` protocol, for engines in the caller's own process."""

from __future__ import annotations

from tinkex.engine.interface import ROLES, Role

__all__ = ["InProcessEngine"]


class InProcessEngine:
    """Base of engines that are no other process: they never hang up and have no name."""

    silent_seconds = 0.0
    is_remote = False
    worker = worker_name = worker_host = ""
    roles: tuple[Role, ...] = ROLES
