"""Losses that clients uploaded: kept with their session, so that its requests can be repeated.

`(session_id, seq_id)` is the identity of a loss: the same pair with the same content is the same
loss, with other content it is refused. A row is its request and its result at once.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec
from sqlalchemy import Connection, func, select

from tinkex.store.clock import steady_now
from tinkex.store.operations import SequenceError
from tinkex.store.quotas import QuotaExceeded
from tinkex.store.request_ids import new_request_id
from tinkex.store.schema import custom_losses, models, sessions

__all__ = ["CustomLoss", "NewCustomLoss", "body", "create", "is_usable"]


class NewCustomLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A loss to store. `body` is its inputs and its graph."""

    owner: str
    session_id: str
    seq_id: int
    name: str
    body: bytes


class CustomLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A stored loss, without its body."""

    loss_id: str
    request_id: str
    owner: str
    state: str = "done"


def create(
    conn: Connection, new: NewCustomLoss, max_losses: int, max_bytes: int
) -> tuple[CustomLoss, bool]:
    """Stores the loss; returns it, and whether it is new.

    Raises:
        SequenceError: the number was used for another loss.
        QuotaExceeded: the owner has as many losses, or as many bytes of them, as it may.
    """
    digest = hashlib.sha256(msgspec.json.encode((new.name, new.body))).digest()
    columns = (*(custom_losses.c[name] for name in ("loss_id", "request_id", "owner")),)
    where = (
        custom_losses.c.owner == new.owner,
        custom_losses.c.session_id == new.session_id,
        custom_losses.c.seq_id == new.seq_id,
    )
    known = conn.execute(select(*columns, custom_losses.c.body_hash).where(*where)).first()
    if known is not None:
        if known.body_hash != digest:
            raise SequenceError(
                f"custom_loss_seq_id={new.seq_id} of {new.session_id} was used for another loss.",
                hint="Number the custom losses of a session one by one.",
            )
        found = CustomLoss(loss_id=known.loss_id, request_id=known.request_id, owner=known.owner)
        return found, False
    _check_quota(conn, new, max_losses, max_bytes)
    made = CustomLoss(
        loss_id=f"loss-{uuid.uuid4()}", request_id=new_request_id(new.owner), owner=new.owner
    )
    conn.execute(
        custom_losses.insert().values(
            loss_id=made.loss_id,
            request_id=made.request_id,
            owner=new.owner,
            session_id=new.session_id,
            seq_id=new.seq_id,
            name=new.name,
            body=new.body,
            body_hash=digest,
            size_bytes=len(new.body),
            created_at=steady_now(),
        )
    )
    return made, True


def body(conn: Connection, owner: str, loss_id: str) -> bytes | None:
    """Returns the body of the owner's loss; None if there is no such loss."""
    query = select(custom_losses.c.body).where(
        custom_losses.c.loss_id == loss_id, custom_losses.c.owner == owner
    )
    found = conn.execute(query).scalar()
    return None if found is None else bytes(found)


def is_usable(conn: Connection, owner: str, loss_id: str, model_id: str) -> bool:
    """Returns whether the owner's loss was created in the session of the model."""
    query = (
        select(custom_losses.c.loss_id)
        .join(models, models.c.session_id == custom_losses.c.session_id)
        .where(
            custom_losses.c.loss_id == loss_id,
            custom_losses.c.owner == owner,
            models.c.model_id == model_id,
            models.c.owner == owner,
        )
    )
    return conn.execute(query).first() is not None


def _check_quota(conn: Connection, new: NewCustomLoss, max_losses: int, max_bytes: int) -> None:
    of_owner = custom_losses.c.owner == new.owner
    is_open = sessions.c.finished_at.is_(None)
    held = conn.execute(
        select(func.count())
        .select_from(custom_losses)
        .join(sessions, sessions.c.session_id == custom_losses.c.session_id)
        .where(of_owner, is_open)
    ).scalar()
    if int(held or 0) >= max_losses:
        raise QuotaExceeded(
            f"Your open sessions have {held} custom losses, and this server's limit is "
            f"{max_losses}.",
            hint="Close clients that are done, and create each loss once.",
        )
    size = conn.execute(select(func.sum(custom_losses.c.size_bytes)).where(of_owner)).scalar()
    if int(size or 0) + len(new.body) > max_bytes:
        raise QuotaExceeded(
            f"Your custom losses take {int(size or 0)} bytes, this one {len(new.body)} more, and "
            f"this server's limit is {max_bytes}.",
            hint="Losses go some time after their session ends; create each loss once.",
        )
