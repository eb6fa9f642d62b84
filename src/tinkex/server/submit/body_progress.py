"""What is known of the body of a numbered request while it is read, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from tinkex.server.http.compression import plain_head
from tinkex.server.submit.peek import HEAD_BYTES, Target, target_of_json, target_of_protobuf

__all__ = ["SeenBody", "seen_body"]

_STATE = "seen_body"
_RAW_HEAD_BYTES = 160 * 1024  # of a compressed body: its first block takes up to 128 KiB


class SeenBody:
    """The first bytes of a body, its last ones, or all of it; and the operation it names.

    `on_target` is called as soon as the operation is known, if that is before the body has come.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        is_json: bool,
        is_packed: bool,
        on_target: Callable[[Target], None],
    ) -> None:
        self._is_json = is_json
        self._is_packed = is_packed
        self._on_target = on_target
        self._head = b""
        self._target: Target | None = None
        self.head_bytes = _RAW_HEAD_BYTES if self._is_packed else HEAD_BYTES
        self._state = scope["state"]
        self._state[_STATE] = self

    @property
    def has_tail(self) -> bool:
        """Whether the last bytes may name the operation when the first ones do not."""
        return self._is_json and not self._is_packed

    @property
    def target(self) -> Target | None:
        """The operation, if it was found."""
        return self._target

    def set_head(self, raw: bytes) -> None:
        """Notes the first bytes of the body as it was sent."""
        self._head = plain_head(raw, HEAD_BYTES) if self._is_packed else raw[:HEAD_BYTES]
        self._target = (
            target_of_json(self._head) if self._looks_like_json() else self._of_protobuf()
        )
        if self._target is not None:
            self._on_target(self._target)

    def set_tail(self, tail: bytes) -> None:
        """Notes the last bytes of the body."""
        self._target = target_of_json(self._head, tail)

    def set_body(self, body: bytes) -> None:
        """Notes the body, decompressed, or as much of it as could be."""
        if self._target is None:
            self._head = body

    def find(self) -> Target | None:
        """The operation that the body names."""
        if self._target is None:
            whole = self._head
            is_json = self._looks_like_json()
            self._target = target_of_json(whole, whole) if is_json else self._of_protobuf()
        return self._target

    def forget(self) -> None:
        """Drops the body. A connection keeps the state of its last request, while it is idle
        and after it was closed until the next full garbage collection."""
        self._head = b""
        self._state.pop(_STATE, None)

    def _looks_like_json(self) -> bool:
        """Whether the body is JSON, if only of a client that declares another type: it is refused,
        but its number can be read. No training message begins so: the byte would open a group."""
        return self._is_json or self._head.startswith(b"{")

    def _of_protobuf(self) -> Target | None:
        return target_of_protobuf(self._head)


def seen_body(scope: Scope) -> SeenBody | None:
    """What is known of the request's body, if the request carries a number."""
    found: SeenBody | None = scope["state"].get(_STATE)
    return found
