"""Keys, sessions, samplers, samples, checkpoints; on SQLite and on PostgreSQL."""

from __future__ import annotations

import hashlib
import time

import msgspec
import pytest

from tests.store.postgres import each_database
from tests.store.work import OWNER, add_checkpoint, add_model, add_session, append
from tinkex.store import (
    Database,
    checkpoints,
    keys,
    models,
    operation_outcomes,
    operations,
    results,
    samplers,
    samples,
    sessions,
)
from tinkex.store.checkpoints import Checkpoint
from tinkex.store.models import SnapshotBefore, SnapshotRecord
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.operations import SequenceError
from tinkex.store.results import Result
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import NewSample
from tinkex.types.requests import CLONE_STRIDE

DONE = Result(encoding="proto", body=b"1234")


db = each_database


def test_only_the_hash_of_a_key_is_kept(db: Database) -> None:
    key = keys.new_key()
    assert key.startswith("tml-")
    added = db.write(keys.add, key, name="laptop")
    assert added.hash == hashlib.sha256(key.encode()).digest()
    assert key not in repr(added)
    assert db.write(keys.add, key, name="again") == added
    assert db.write(keys.revoke, added.key_id)
    assert not db.write(keys.revoke, added.key_id)
    found = db.read(keys.find, keys.hash_key(key))
    assert found is not None
    assert found.revoked_at is not None


def test_keys_have_owners_of_their_own_unless_they_share_one(db: Database) -> None:
    owners = [db.write(keys.add, keys.new_key(), name="k").owner for _ in range(2)]
    assert owners[0] != owners[1]
    assert db.write(keys.add, keys.new_key(), name="k", owner=owners[0]).owner == owners[0]


def test_sessions_end_once(db: Database) -> None:
    owner = f"owner-{time.time_ns()}"
    session_id = db.write(add_session, owner)
    assert not db.write(sessions.finish, "bob", session_id, "success", None)
    assert db.write(sessions.finish, owner, session_id, "success", "fine")
    assert not db.write(sessions.finish, owner, session_id, "errored", None)
    found = db.read(sessions.get, owner, session_id)
    assert found is not None
    assert (found.finish_reason, found.finish_detail) == ("success", "fine")
    assert db.read(sessions.list_ids, owner, limit=5, offset=0) == [session_id]
    assert db.read(sessions.get, "bob", session_id) is None


def test_silent_sessions_end(db: Database) -> None:
    silent, alive = db.write(add_session), db.write(add_session)
    db.write(sessions.record_heartbeats, {silent: time.time() - 100})
    assert silent in db.write(sessions.finish_silent, time.time() - 50)
    assert alive not in db.write(sessions.finish_silent, time.time() - 50)


def test_silent_sessions_with_a_later_heartbeat_stay_open(db: Database) -> None:
    owner = f"owner-{time.time_ns()}"
    silent, heard = db.write(add_session, owner), db.write(add_session, owner)
    db.write(sessions.record_heartbeats, dict.fromkeys((silent, heard), time.time() - 100))
    ended = db.write(sessions.finish_silent, time.time() - 50, frozenset({heard}))
    assert silent in ended
    assert heard not in ended
    for session_id, is_open in ((silent, False), (heard, True)):
        found = db.read(sessions.get, owner, session_id)
        assert found is not None
        assert (found.finished_at is None) is is_open


def test_sessions_are_found_page_by_page(db: Database) -> None:
    owner = f"owner-{time.time_ns()}"
    made = [db.write(add_session, owner) for _ in range(5)]
    seen: list[str] = []
    before = None
    while page := db.read(sessions.search, owner, limit=2, before=before):
        seen += [each.session_id for each in page]
        before = (page[-1].created_at, page[-1].session_id)
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


def test_the_log_works_here_too(db: Database) -> None:
    model = db.write(add_model)
    appended = db.write(append, model, 1)
    assert appended.is_new
    assert not db.write(append, model, 1).is_new
    operation = appended.operation
    db.write(
        operation_outcomes.finish,
        [OperationOutcome(operation=operation, result=DONE, num_tokens=3)],
    )
    found = db.read(results.find, OWNER, operation.request_id)
    assert found is not None
    assert found.result == DONE
    assert db.read(operations.positions, model) == {model: (2, set())}
    db.write(models.record_snapshot, model, 1, SnapshotRecord(folder="a" * 32, size_bytes=10))
    assert "a" * 32 in db.read(models.snapshot_folders)


def test_a_record_written_a_second_time_replaces_nothing(db: Database) -> None:
    """Or the one file of it would be taken for an old one and removed."""
    model = db.write(add_model)
    first, second = (SnapshotRecord(folder=each * 32, size_bytes=10) for each in "ab")
    for folder_before, snapshot in ((None, first), (None, first), ("a" * 32, second)):
        replaced = db.write(models.record_snapshot, model, 1, snapshot)
        assert replaced == SnapshotBefore(folder_before)
    checkpoint_id = db.write(add_checkpoint)
    kept = db.read(checkpoints.get, checkpoint_id)
    assert kept is not None
    assert db.write(checkpoints.put, kept) is None
    assert db.read(checkpoints.get, checkpoint_id) == kept


def _sampler(session_id: str, **changes: object) -> SamplerRecord:
    sampler = SamplerRecord(
        sampling_session_id=f"{session_id}:sample:0",
        owner=OWNER,
        session_id=session_id,
        base_model="null",
        engine_model="null",
        created_at=time.time(),
    )
    return msgspec.structs.replace(sampler, **changes)


def test_samplers_are_joined_and_freed(db: Database) -> None:
    session_id = db.write(add_session)
    kept = db.write(samplers.insert, _sampler(session_id))
    assert db.write(samplers.insert, _sampler(session_id, base_model="other")) == kept
    assert db.write(samplers.join, OWNER, kept.sampling_session_id) == 1
    assert db.write(samplers.join, OWNER, kept.sampling_session_id) == 2
    assert db.write(samplers.join, "bob", kept.sampling_session_id) is None
    assert db.write(samplers.free_session, session_id) == [], "a base model has nothing to free"
    ephemeral = _sampler(
        session_id, sampling_session_id=f"{session_id}:sample:1", model_id="m", folder="b" * 32
    )
    db.write(samplers.insert, ephemeral)
    assert "b" * 32 in db.read(samplers.live_folders)
    assert [each.folder for each in db.write(samplers.free_session, session_id)] == ["b" * 32]
    assert "b" * 32 not in db.read(samplers.live_folders)


def _sample(session: str, seq_id: int, body: bytes = b"x") -> NewSample:
    return NewSample(
        owner=OWNER,
        sampling_session_id=session,
        seq_id=seq_id,
        body=body,
        digest=hashlib.sha256(body).digest(),
        num_samples=2,
        cost=5,
    )


def test_completions_are_numbered_and_split_by_client(db: Database) -> None:
    session = f"{db.write(add_session)}:sample:0"
    clone = 28_774_933 * CLONE_STRIDE
    appended = [db.write(samples.append, _sample(session, n)) for n in (0, 1, clone)]
    assert all(is_new for _, is_new in appended)
    made = [sample for sample, _ in appended]
    again, is_new = db.write(samples.append, _sample(session, 0))
    assert (again, is_new) == (made[0], False)
    with pytest.raises(SequenceError):
        db.write(samples.append, _sample(session, 0, b"other"))
    db.write(samples.finish, [(made[2], DONE), (made[1], DONE)])
    db.write(samples.finish, [(made[1], DONE), (made[0], DONE)])

    def done(number: int, after: int) -> list[samples.Completion]:
        return db.read(samples.completions, OWNER, session, number, after, 10)

    first = done(0, 0)
    assert [each.request_id for each in first] == [made[1].request_id, made[0].request_id]
    assert first[0].size_bytes == 4
    assert not first[0].is_failed
    assert done(0, first[0].number) == first[1:]
    assert [each.request_id for each in done(28_774_933, 0)] == [made[2].request_id]


def _checkpoint(model_id: str, **changes: object) -> Checkpoint:
    checkpoint = Checkpoint(
        checkpoint_id=hashlib.md5(model_id.encode()).hexdigest(),
        owner=OWNER,
        model_id=model_id,
        kind="weights",
        name="one",
        base_model="null",
        engine_model="null",
        spec="{}",
        optimizer_config={"type": "adamw"},
        user_metadata={"a": "b"},
        size_bytes=10,
        created_at=time.time(),
    )
    return msgspec.structs.replace(checkpoint, **changes)


def test_checkpoints_by_name_owner_publication_and_age(db: Database) -> None:
    model = db.write(add_model)
    one = _checkpoint(model)
    assert db.write(checkpoints.put, one) is None
    newer = msgspec.structs.replace(one, checkpoint_id="c" * 31 + str(time.time_ns() % 10))
    assert db.write(checkpoints.put, newer) == one.checkpoint_id
    where = (model, "weights", "one")
    assert db.read(checkpoints.find, OWNER, *where) == newer
    assert db.read(checkpoints.find, "bob", *where, published=True) is None
    db.write(checkpoints.set_public, "bob", newer.checkpoint_id, True)
    assert db.read(checkpoints.find, "bob", *where, published=True) is None
    db.write(checkpoints.set_public, OWNER, newer.checkpoint_id, True)
    assert db.read(checkpoints.find, "bob", *where, published=True) is not None
    assert db.read(checkpoints.find, "bob", *where) is None
    assert not db.write(checkpoints.delete_one, "bob", newer.checkpoint_id)
    db.write(checkpoints.set_expiry, OWNER, newer.checkpoint_id, time.time() - 1)
    assert db.read(checkpoints.find, OWNER, *where) is None
    assert newer.checkpoint_id in db.write(checkpoints.drop_expired)
