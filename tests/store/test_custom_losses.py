"""Losses that clients uploaded: one row each, for their owner, as long as their session's state."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, text

from tests.store.postgres import each_database
from tests.store.work import OWNER, add_model, add_session
from tinkex.engine.errors import EngineUserError
from tinkex.scheduler.operation_bodies import BodyCache
from tinkex.store import Database, custom_losses, results, session_retention, sessions
from tinkex.store.clock import steady_now
from tinkex.store.custom_losses import NewCustomLoss
from tinkex.store.migrations import MIGRATIONS
from tinkex.store.operations import SequenceError
from tinkex.store.quotas import QuotaExceeded
from tinkex.types.requests import ForwardBackwardRequest

db = each_database


def new(session_id: str, seq_id: int = 0, body: bytes = b"graph", **more: str) -> NewCustomLoss:
    fields = {"owner": OWNER, "name": "n", **more}
    return NewCustomLoss(session_id=session_id, seq_id=seq_id, body=body, **fields)


def keep(db: Database, loss: NewCustomLoss, most: int = 1000, max_bytes: int = 10**9) -> str:
    return db.write(custom_losses.create, loss, most, max_bytes)[0].loss_id


def test_a_loss_is_kept_once_and_its_row_is_its_result(db: Database) -> None:
    session_id = db.write(add_session)
    made, is_new = db.write(custom_losses.create, new(session_id), 1000, 10**9)
    assert is_new
    assert db.write(custom_losses.create, new(session_id), 1000, 10**9) == (made, False)
    with pytest.raises(SequenceError, match="custom_loss_seq_id=0"):
        keep(db, new(session_id, body=b"other"))
    with pytest.raises(SequenceError):
        keep(db, new(session_id, name="other"))
    assert db.read(custom_losses.body, OWNER, made.loss_id) == b"graph"
    assert db.read(custom_losses.body, "bob", made.loss_id) is None
    assert db.read(results.find, "bob", made.request_id) is None
    found = db.read(results.find, OWNER, made.request_id)
    assert found is not None
    assert found.is_finished
    assert found.result is not None
    answer = {"loss_id": made.loss_id, "type": "create_custom_loss"}
    assert msgspec.json.decode(found.result.body) == answer


def test_a_loss_belongs_to_the_models_of_its_session(db: Database) -> None:
    model = db.write(add_model)
    session_id = model.split(":")[0]
    mine, other = keep(db, new(session_id)), keep(db, new(db.write(add_session)))
    assert db.read(custom_losses.is_usable, OWNER, mine, model)
    assert not db.read(custom_losses.is_usable, OWNER, other, model)
    assert not db.read(custom_losses.is_usable, "bob", mine, model)


def test_a_request_without_its_loss_is_an_error_of_its_own(db: Database) -> None:
    bodies = BodyCache(db)
    loss_id = keep(db, new(db.write(add_session)))
    request = ForwardBackwardRequest(
        model_id="m", data=[], loss_fn="custom", loss_fn_config={"loss_id": loss_id}
    )
    assert bodies.custom_loss(OWNER, request) == b"graph"
    with pytest.raises(EngineUserError, match="no custom loss"):
        bodies.custom_loss("bob", request)
    plain = ForwardBackwardRequest(model_id="m", data=[], loss_fn="ppo")
    assert bodies.custom_loss(OWNER, plain) == b""


def test_quotas_count_open_sessions_and_all_bytes(db: Database) -> None:
    owner = "quota-owner"
    session_id = db.write(add_session, owner)
    keep(db, new(session_id, owner=owner), most=1)
    with pytest.raises(QuotaExceeded, match="1 custom losses"):
        keep(db, new(session_id, 1, owner=owner), most=1)
    db.write(sessions.finish, owner, session_id, "success", None)
    later = db.write(add_session, owner)
    with pytest.raises(QuotaExceeded, match="take 5 bytes, this one 5 more"):
        keep(db, new(later, owner=owner), most=1, max_bytes=9)
    assert keep(db, new(later, owner=owner), most=1, max_bytes=10)


def test_a_loss_goes_with_what_its_session_held(db: Database) -> None:
    session_id = db.write(add_session)
    loss_id = keep(db, new(session_id))
    db.write(sessions.finish, OWNER, session_id, "success", None)
    assert db.read(custom_losses.body, OWNER, loss_id) == b"graph"
    assert db.write(session_retention.trim_session, session_id, steady_now() + 50) is not None
    assert db.read(custom_losses.body, OWNER, loss_id) is None


def test_an_older_database_gets_the_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first = Database(url)
    session_id = first.write(add_session)

    def age(conn: Connection) -> None:
        conn.execute(text("drop table custom_losses"))
        (name,) = [each.__name__ for each in MIGRATIONS if "custom_losses" in each.__name__]
        conn.execute(text("delete from migrations where name = :n"), {"n": name})

    first.write(age)
    first.close()
    second = Database(url)
    loss_id = keep(second, new(session_id))
    assert second.read(custom_losses.body, OWNER, loss_id) == b"graph"
    second.close()
