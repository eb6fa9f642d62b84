"""Queries for searching sessions."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._model import ProtocolModel
from tinkex.types.session import ClientSessionFinishReasonType, SessionSearchCursor


class OwnSearchOwner(ProtocolModel, frozen=True, tag_field="type", tag="own"):
    """Sessions of the caller."""

    type: ClassVar[Literal["own"]] = "own"


class AccessibleSearchOwner(ProtocolModel, frozen=True, tag_field="type", tag="accessible"):
    """Sessions the caller may see."""

    type: ClassVar[Literal["accessible"]] = "accessible"


class UserSearchOwner(ProtocolModel, frozen=True, kw_only=True, tag_field="type", tag="user"):
    """Sessions of certain users.

    Raises:
        ValidationError: fewer than 1 or more than 10 owners are named.
    """

    type: ClassVar[Literal["user"]] = "user"
    owner_urns: list[str]

    def __post_init__(self) -> None:
        if not 1 <= len(self.owner_urns) <= 10:
            raise ValidationError(
                f"owner_urns must name 1 to 10 owners, not {len(self.owner_urns)}."
            )


SearchOwner = OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner


class ActiveSessionStatusQuery(ProtocolModel, frozen=True, tag_field="type", tag="active"):
    """Matches sessions in use."""

    type: ClassVar[Literal["active"]] = "active"


class CancelledSessionStatusQuery(ProtocolModel, frozen=True, tag_field="type", tag="cancelled"):
    """Matches sessions the server ended."""

    type: ClassVar[Literal["cancelled"]] = "cancelled"


class FailedSessionStatusQuery(ProtocolModel, frozen=True, tag_field="type", tag="failed"):
    """Matches sessions that failed."""

    type: ClassVar[Literal["failed"]] = "failed"


class ClientFinishedSessionStatusQuery(
    ProtocolModel,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="client_finished",
    omit_defaults=True,
):
    """Matches sessions their clients ended, for any of `reasons` (None: any at all).

    Raises:
        ValidationError: `reasons` is empty.
    """

    type: ClassVar[Literal["client_finished"]] = "client_finished"
    reasons: list[ClientSessionFinishReasonType] | None = None

    def __post_init__(self) -> None:
        _require_not_empty("reasons", self.reasons)


SessionStatusQuery = (
    ActiveSessionStatusQuery
    | CancelledSessionStatusQuery
    | FailedSessionStatusQuery
    | ClientFinishedSessionStatusQuery
)


class SessionSearchRequest(ProtocolModel, frozen=True, kw_only=True, omit_defaults=True):
    """A query for sessions.

    Raises:
        ValidationError: `limit` is not in 1..200, or `display_name` or `statuses` is empty.
    """

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = msgspec.field(default_factory=lambda: {})
    display_name: str | None = None
    owner: SearchOwner = sent(OwnSearchOwner())
    statuses: list[SessionStatusQuery] | None = None
    limit: int = sent(50)
    cursor: SessionSearchCursor | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= 200:
            raise ValidationError(f"limit={self.limit} must be between 1 and 200.")
        _require_not_empty("display_name", self.display_name)
        _require_not_empty("statuses", self.statuses)


def _require_not_empty(
    name: str, value: str | list[SessionStatusQuery] | list[ClientSessionFinishReasonType] | None
) -> None:
    if value is not None and not value:
        raise ValidationError(f"{name} must not be empty; leave it out instead.")
