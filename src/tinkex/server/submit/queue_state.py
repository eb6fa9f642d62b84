"""Why a request has not run yet, in the words that clients show to their users.

Called once per poll that ends without a result, and of clients with one poll for all their samples
about once a second. Clients know three states: "active" says nothing,
"paused_rate_limit" and "paused_capacity" are shown with the reason, at most once a minute.
"""

from __future__ import annotations

from tinkex.engine.interface import Role
from tinkex.server.services import Services

State = tuple[str, str | None]

ACTIVE: State = ("active", None)

_WAITS_AFTER_S = 1.0
"""A sample that has waited less is on its way: every sample waits a moment for the next step."""


def queue_state(services: Services, owner: str, kind: str, request_id: str) -> State:
    """The state of the owner's request and the reason for it."""
    if state := _of_server(services, owner, "sample" if kind == "sample" else "train"):
        return state
    scheduler = services.scheduler
    if kind == "sample":
        is_waiting = scheduler.is_sample_waiting(owner, request_id)
        return _samples_wait(services, owner) if is_waiting else ACTIVE
    others = scheduler.tenants_waiting() - 1
    if others > 0:
        waiting = scheduler.pending_operations(owner)
        return "paused_capacity", (
            f"The engine works for {_tenants(others)} beside you, in turn; {waiting} operations of "
            "yours wait."
        )
    return ACTIVE


def session_queue_state(services: Services, owner: str, sampling_session_id: str) -> State:
    """The state of the owner's sampling session, and the reason for it: paused while any of its
    samples waits."""
    if state := _of_server(services, owner, "sample"):
        return state
    waits = services.scheduler.is_session_waiting(owner, sampling_session_id, _WAITS_AFTER_S)
    return _samples_wait(services, owner) if waits else ACTIVE


def _of_server(services: Services, owner: str, role: Role) -> State | None:
    """What keeps all requests of the owner that need this role from running, if anything."""
    if reason := services.admission.throttled(owner):
        return "paused_rate_limit", reason
    if not services.scheduler.is_ready():
        return "paused_capacity", f"The server is starting; {services.starting()}."
    if not services.scheduler.workers.has_role(role):
        return "paused_capacity", f"No worker is there that can {role}; the request waits for one."
    return None


def _samples_wait(services: Services, owner: str) -> State:
    mine = services.scheduler.pending_samples(owner)
    total = services.scheduler.pending_samples()
    return "paused_capacity", (
        f"The engine is busy: {total} sampling requests are on the server, {mine} of them yours."
    )


def _tenants(count: int) -> str:
    return "one other tenant" if count == 1 else f"{count} other tenants"
