"""What one answer to `retrieve_future` means.

Pure: decides from one HTTP answer what to do next. Knows nothing of sockets, sleep or threads.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from tinkex.client.transport import Answer
from tinkex.errors import (
    APIResponseValidationError,
    ErrorCategory,
    PromiseLostError,
    RequestFailedError,
    TinkexError,
)

QueueState = Literal["active", "paused_capacity", "paused_rate_limit", "unknown"]
_QUEUE_STATES = ("active", "paused_capacity", "paused_rate_limit")
_CATEGORIES = ("user", "server", "unknown")

MAX_BAD_REQUESTS = 3


class Queue(msgspec.Struct, frozen=True):
    """The queue state of the request, as far as the server reported it."""

    state: QueueState = "active"
    reason: str | None = None


class Done(msgspec.Struct, frozen=True):
    """The result is here."""

    answer: Answer


class NotYet(msgspec.Struct, frozen=True):
    """The server is working on it."""

    queue: Queue | None = None


class Sized(msgspec.Struct, frozen=True):
    """The result is ready; fetch it when this many bytes of memory are free."""

    size_bytes: int


class PollFailed(msgspec.Struct, frozen=True):
    """The poll itself failed; the request may be fine. Poll again later."""

    status: int


class Failed(msgspec.Struct, frozen=True):
    """The request failed."""

    error: TinkexError


Step = Done | NotYet | Sized | PollFailed | Failed


def next_step(answer: Answer, request_id: str) -> Step | None:
    """What a poll's answer means; None for an error status that ends the wait as it is."""
    if answer.is_ok:
        return Done(answer) if answer.is_protobuf else _from_json(answer, request_id)
    match answer.status:
        case 408:
            return NotYet(_queue_of(_fields(answer.body)))
        case 410:
            return Failed(_promise_lost(_fields(answer.body), request_id))
        case 400 | 402 | 409 | 429:
            return PollFailed(answer.status)
        case status if status >= 500:
            return PollFailed(status)
        case _:
            return None


def _from_json(answer: Answer, request_id: str) -> Step:
    fields = _fields(answer.body)
    if fields is None:
        return Failed(
            APIResponseValidationError(
                f"The answer for request {request_id} is not a JSON object.", request_id=request_id
            )
        )
    if fields.get("type") == "try_again":
        return NotYet(_queue_of(fields))
    if fields.get("status") == "complete_metadata":
        size = fields.get("response_payload_size")
        return Sized(size if isinstance(size, int) and size > 0 else 0)
    if "error" in fields:
        return Failed(_request_failed(fields, request_id))
    return Done(answer)


def _request_failed(fields: dict[str, Any], request_id: str) -> RequestFailedError:
    category: ErrorCategory = "unknown"
    if fields.get("category") in _CATEGORIES:
        category = fields["category"]
    text = fields["error"]
    message = text if isinstance(text, str) and text else "The server gave no reason."
    return RequestFailedError(message, category=category, request_id=request_id)


def _promise_lost(fields: dict[str, Any] | None, request_id: str) -> PromiseLostError:
    detail = (fields or {}).get("detail")
    why = f" It says: {detail}" if isinstance(detail, str) and detail else ""
    message = f"The server no longer knows request {request_id}.{why}"
    return PromiseLostError(message, request_id=request_id)


def _queue_of(fields: dict[str, Any] | None) -> Queue | None:
    if not fields or "queue_state" not in fields:
        return None
    return queue_from(fields["queue_state"], fields.get("queue_state_reason"))


def queue_from(state: object, reason: object) -> Queue:
    """The state that a server names; one this client does not know is "unknown"."""
    return Queue(
        cast("QueueState", state) if state in _QUEUE_STATES else "unknown",
        reason if isinstance(reason, str) and reason else None,
    )


def _fields(body: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return fields if isinstance(fields, dict) else None


def pause_after_not_yet(held_s: float, quick_answers: int) -> float:
    """Seconds to wait before the next poll after "not yet".

    A server that held the poll has done the waiting already. One that answers at once would be
    hit hundreds of times a second: the pause grows from 20 ms to a second.
    """
    if held_s >= 1.0:
        return 0.0
    return min(0.02 * 2.0 ** min(quick_answers, 10), 1.0)
