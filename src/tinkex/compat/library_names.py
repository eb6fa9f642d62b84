"""Names of `tinker.lib` that programs import beside the documented ones.

What they do has a counterpart here; the rest of that folder is the inside of the official client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, StrEnum

from tinkex.client.chunking import combine
from tinkex.config import DEFAULT_BASE_URL, Config

__all__ = [
    "DEFAULT_BASE_URL",
    "ClientConnectionPoolType",
    "QueueState",
    "QueueStateObserver",
    "combine_fwd_bwd_output_results",
    "resolve_base_url",
]

combine_fwd_bwd_output_results = combine


class QueueState(StrEnum):
    """What `on_queue_state_change` is called with: equal to the text that a client here gives."""

    ACTIVE = "active"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    PAUSED_CAPACITY = "paused_capacity"
    UNKNOWN = "unknown"


class QueueStateObserver(ABC):
    """An object with the method that clients call when the state of their queue changes."""

    @abstractmethod
    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """The new state, and the server's reason for it."""


class ClientConnectionPoolType(Enum):
    """The purposes that connections are kept for. No method takes one."""

    SESSION = "session"
    SAMPLE = "sample"
    TRAIN = "train"
    REST_SUPPORT_REDIRECT = "rest_support_redirect"
    RETRIEVE_PROMISE = "retrieve_promise"
    RETRIEVE_FUTURES = "retrieve_futures"
    TELEMETRY = "telemetry"


def resolve_base_url(base_url: object = None) -> str:
    """The address of the server: the argument, or what `Config` finds; without a last slash."""
    return Config(base_url=str(base_url) if base_url else None).base_url.rstrip("/")
