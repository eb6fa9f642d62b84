"""Operation bodies: their form in the log, and how they are read before they run.

Training data stays in the protobuf form it came in; everything else is JSON. Requests decoded
when they were submitted are remembered for a while, so that most are read and decoded once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, TypeVar, cast

import msgspec

from tinkex.engine.custom_loss.declaration import CUSTOM, LOSS_ID
from tinkex.engine.errors import EngineUserError
from tinkex.store import Database, custom_losses, operations
from tinkex.types.requests import ForwardBackwardRequest
from tinkex.wire import json, protobuf

T = TypeVar("T")


class LoadCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Load saved weights. `as_owner` is whose checkpoints may be read, settled at submit."""

    path: str
    optimizer: bool
    as_owner: str


class SaveCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Save the adapter under a name, or, without one, as the sampler of a sampling session."""

    kind: str  # weights, sampler_weights, external_weights
    name: str | None = None
    sampling_session_id: str | None = None
    overwrite: bool = False
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    age_recipients: list[str] | None = None


class BodyCache:
    """Decoded requests by request id, up to a size; thread-safe."""

    def __init__(self, db: Database, *, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._db = db
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[object, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def remember(self, request_id: str, request: object, size_bytes: int) -> None:
        """Keeps a decoded request until it runs."""
        with self._lock:
            self._kept[request_id] = (request, size_bytes)
            self._size += size_bytes
            while self._size > self._max_bytes:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._size -= dropped

    def training(self, request_id: str) -> ForwardBackwardRequest:
        """The training request of an operation."""
        known = self._take(request_id)
        if known is not None:
            return cast("ForwardBackwardRequest", known)
        return protobuf.decode_forward_backward_request(self._body(request_id))

    def custom_loss(self, owner: str, request: ForwardBackwardRequest) -> bytes:
        """The uploaded loss that a training request names; empty if it names none.

        Raises:
            EngineUserError: the owner has no such loss.
        """
        if request.loss_fn != CUSTOM:
            return b""
        loss_id = str(request.loss_fn_config.get(LOSS_ID))
        body = self._db.read(custom_losses.body, owner, loss_id)
        if body is None:
            raise EngineUserError(
                f"There is no custom loss {loss_id[:100]!r} any more. Create it again.",
                code="unknown-custom-loss",
                field=f"loss_fn_config.{LOSS_ID}",
                value=loss_id,
            )
        return body

    def command(self, request_id: str, type_: type[T]) -> T:
        """The command of an operation that is not training."""
        known = self._take(request_id)
        if known is not None:
            return cast("T", known)
        return cast("T", json.decode_request(self._body(request_id), cast("Any", type_)))

    def _take(self, request_id: str) -> object | None:
        with self._lock:
            known, size = self._kept.pop(request_id, (None, 0))
            self._size -= size
            return known

    def _body(self, request_id: str) -> bytes:
        return self._db.read(operations.bodies, [request_id])[request_id]
