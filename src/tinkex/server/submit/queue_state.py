"""Why a request has not run yet, in the words that clients show to their users.

Called once per poll that ends without a result. Clients know three states: "active" says nothing,
"paused_rate_limit" and "paused_capacity" are shown with the reason, at most once a minute.
"""

from __future__ import annotations

from tinkex.engine.interface import Role
from tinkex.server.services import Services

State = tuple[str, str | None]

ACTIVE: State = ("active", None)


def queue_state(services: Services, owner: str, kind: str, request_id: str) -> State:
    """The state of the owner's request and the reason for it."""
    if reason := services.admission.throttled(owner):
        return "paused_rate_limit", reason
    scheduler = services.scheduler
    if not scheduler.is_ready():
        return "paused_capacity", "The engine is still loading its models."
    role: Role = "sample" if kind == "sample" else "train"
    if not scheduler.workers.has_role(role):
        return "paused_capacity", f"No worker is there that can {role}; the request waits for one."
    if kind == "sample":
        return _of_sample(services, owner, request_id)
    others = scheduler.tenants_waiting() - 1
    if others > 0:
        waiting = scheduler.pending_operations(owner)
        return "paused_capacity", (
            f"The engine works for {_tenants(others)} beside you, in turn; {waiting} operations of "
            "yours wait."
        )
    return ACTIVE


def _of_sample(services: Services, owner: str, request_id: str) -> State:
    scheduler = services.scheduler
    if not scheduler.is_sample_waiting(owner, request_id):
        return ACTIVE
    mine, total = scheduler.pending_samples(owner), scheduler.pending_samples()
    return "paused_capacity", (
        f"All places for sampling are taken: {total} requests are on the server, {mine} of them "
        "yours."
    )


def _tenants(count: int) -> str:
    return "one other tenant" if count == 1 else f"{count} other tenants"
