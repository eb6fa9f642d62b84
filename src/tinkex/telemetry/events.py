"""The names of all events, and nothing else.

Durations and elapsed times are seconds; `system_time` is seconds since the epoch.
"""

from __future__ import annotations

from typing import Final

HTTP_REQUEST_START: Final = "tinkex.http.request.start"
HTTP_REQUEST_STOP: Final = "tinkex.http.request.stop"
HTTP_REQUEST_EXCEPTION: Final = "tinkex.http.request.exception"

QUEUE_STATE_CHANGE: Final = "tinkex.queue.state_change"

FUTURE_TIMEOUT: Final = "tinkex.future.timeout"
FUTURE_API_ERROR: Final = "tinkex.future.api_error"
FUTURE_CONNECTION_ERROR: Final = "tinkex.future.connection_error"
FUTURE_REQUEST_FAILED: Final = "tinkex.future.request_failed"
FUTURE_VALIDATION_ERROR: Final = "tinkex.future.validation_error"

RETRY_ATTEMPT_START: Final = "tinkex.retry.attempt.start"
RETRY_ATTEMPT_STOP: Final = "tinkex.retry.attempt.stop"
RETRY_ATTEMPT_RETRY: Final = "tinkex.retry.attempt.retry"
RETRY_ATTEMPT_FAILED: Final = "tinkex.retry.attempt.failed"

SESSION_HEARTBEAT_FAILED: Final = "tinkex.session.heartbeat_failed"

CUSTOM_LOSS_START: Final = "tinkex.custom_loss.start"
CUSTOM_LOSS_STOP: Final = "tinkex.custom_loss.stop"
CUSTOM_LOSS_EXCEPTION: Final = "tinkex.custom_loss.exception"

REGULARIZER_COMPUTE_START: Final = "tinkex.regularizer.compute.start"
REGULARIZER_COMPUTE_STOP: Final = "tinkex.regularizer.compute.stop"
REGULARIZER_COMPUTE_EXCEPTION: Final = "tinkex.regularizer.compute.exception"

RECOVERY_DETECTED: Final = "tinkex.recovery.detected"
RECOVERY_STARTED: Final = "tinkex.recovery.started"
RECOVERY_CHECKPOINT_SELECTED: Final = "tinkex.recovery.checkpoint_selected"
RECOVERY_CLIENT_CREATED: Final = "tinkex.recovery.client_created"
RECOVERY_COMPLETED: Final = "tinkex.recovery.completed"
RECOVERY_FAILED: Final = "tinkex.recovery.failed"
RECOVERY_EXHAUSTED: Final = "tinkex.recovery.exhausted"

ALL: Final[tuple[str, ...]] = (
    HTTP_REQUEST_START,
    HTTP_REQUEST_STOP,
    HTTP_REQUEST_EXCEPTION,
    QUEUE_STATE_CHANGE,
    FUTURE_TIMEOUT,
    FUTURE_API_ERROR,
    FUTURE_CONNECTION_ERROR,
    FUTURE_REQUEST_FAILED,
    FUTURE_VALIDATION_ERROR,
    RETRY_ATTEMPT_START,
    RETRY_ATTEMPT_STOP,
    RETRY_ATTEMPT_RETRY,
    RETRY_ATTEMPT_FAILED,
    SESSION_HEARTBEAT_FAILED,
    CUSTOM_LOSS_START,
    CUSTOM_LOSS_STOP,
    CUSTOM_LOSS_EXCEPTION,
    REGULARIZER_COMPUTE_START,
    REGULARIZER_COMPUTE_STOP,
    REGULARIZER_COMPUTE_EXCEPTION,
    RECOVERY_DETECTED,
    RECOVERY_STARTED,
    RECOVERY_CHECKPOINT_SELECTED,
    RECOVERY_CLIENT_CREATED,
    RECOVERY_COMPLETED,
    RECOVERY_FAILED,
    RECOVERY_EXHAUSTED,
)
"""Every event the package emits."""
