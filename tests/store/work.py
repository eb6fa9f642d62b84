"""Rows the store's tests begin with."""

from __future__ import annotations

import hashlib
import time
import uuid

from sqlalchemy import Connection

from tinkex.store import checkpoints, models, operations, sessions
from tinkex.store.checkpoints import Checkpoint
from tinkex.store.models import Model
from tinkex.store.operations import Appended, NewOperation

OWNER = "alice"


def add_session(conn: Connection, owner: str = OWNER) -> str:
    return sessions.create(conn, owner, tags=["a"], user_metadata={"k": 1}, sdk_version="0.36.0")


def add_model(conn: Connection, owner: str = OWNER, number: int = 0) -> str:
    session_id = add_session(conn, owner)
    now = time.time()
    model = Model(
        model_id=f"{session_id}:train:{number}",
        owner=owner,
        session_id=session_id,
        base_model="null",
        engine_model="null",
        spec='{"rank":8,"seed":1}',
        optimizer_config={"type": "adamw"},
        user_metadata={"note": "x"},
        state="ready",
        created_at=now,
        last_request_at=now,
    )
    models.insert(conn, model)
    return model.model_id


def add_checkpoint(conn: Connection, *, expires_at: float | None = None) -> str:
    """A saved state of a new model."""
    checkpoint = Checkpoint(
        checkpoint_id=uuid.uuid4().hex,
        owner=OWNER,
        model_id=add_model(conn),
        kind="weights",
        name="one",
        base_model="null",
        engine_model="null",
        spec="{}",
        optimizer_config={"type": "adamw"},
        user_metadata=None,
        size_bytes=10,
        created_at=time.time(),
        expires_at=expires_at,
    )
    checkpoints.put(conn, checkpoint)
    return checkpoint.checkpoint_id


def new_operation(
    model_id: str, seq_id: int, body: bytes = b"body", kind: str = "optim_step"
) -> NewOperation:
    return NewOperation(
        owner=OWNER,
        model_id=model_id,
        seq_id=seq_id,
        kind=kind,
        body=body,
        digest=hashlib.sha256(body).digest(),
        cost=10,
    )


def append(conn: Connection, model_id: str, seq_id: int, body: bytes = b"body") -> Appended:
    return operations.append(conn, new_operation(model_id, seq_id, body))
