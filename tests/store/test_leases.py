"""One server leads: what the row of the lease allows, and what a commit under an old epoch does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from tests.support.waiting import wait_until
from tinkex.server.admin import create_key, list_keys
from tinkex.store import Database, leases, schema
from tinkex.store.leader_lease import LeaderLease, LeaseLost
from tinkex.store.leases import LeaseHolder, LeaseRecord
from tinkex.store.opening import open_lease
from tinkex.store.sql_engine import limit_idle, make_engine

LIFE_S = 10.0
FAR_S = 1e12  # a time at which every lease has expired


def holder(name: str) -> LeaseHolder:
    return LeaseHolder(holder=name, host=f"host-{name}", pid=7)


@pytest.fixture(params=["sqlite", "postgresql"])
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a database with an untaken lease."""
    is_sqlite = request.param == "sqlite"
    url = "sqlite://" if is_sqlite else request.getfixturevalue("empty_postgres_url")
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        leases.ensure_table(connection)
        yield connection
    engine.dispose()


def test_a_lease_is_taken_once_and_shown_to_the_next(conn: Connection) -> None:
    assert leases.take(conn, holder("a"), LIFE_S, now=100.0) == 1
    assert leases.take(conn, holder("b"), LIFE_S, now=109.9) is None
    found = leases.read(conn)
    assert (found.epoch, found.holder, found.host, found.pid) == (1, "a", "host-a", 7)
    assert (found.since, found.expires_at) == (100.0, 110.0)


def test_an_expired_lease_is_taken_under_the_next_epoch(conn: Connection) -> None:
    assert leases.take(conn, holder("a"), LIFE_S, now=100.0) == 1
    assert leases.take(conn, holder("b"), LIFE_S, now=110.0) == 2
    assert not leases.renew(conn, 1, LIFE_S, now=110.0)
    assert not leases.release(conn, 1)
    assert not leases.lock_epoch(conn, 1)
    assert leases.lock_epoch(conn, 2)
    assert leases.read(conn).expires_at == 120.0


def test_an_expired_lease_that_was_not_taken_is_renewed(conn: Connection) -> None:
    assert leases.take(conn, holder("a"), LIFE_S, now=100.0) == 1
    assert leases.renew(conn, 1, LIFE_S, now=150.0)
    assert leases.take(conn, holder("b"), LIFE_S, now=159.0) is None


def test_a_released_lease_is_free_at_once(conn: Connection) -> None:
    assert leases.take(conn, holder("a"), LIFE_S, now=100.0) == 1
    assert leases.release(conn, 1)
    assert leases.take(conn, holder("b"), LIFE_S, now=100.0) == 2


def test_the_row_is_made_once(conn: Connection) -> None:
    before = leases.read(conn)
    leases.ensure_table(conn)
    assert leases.read(conn) == before


@dataclass
class Rules:
    """The lease in plain words: who holds which epoch, and until when."""

    epoch: int = 0
    expires_at: float = 0.0
    mine: dict[str, int] = field(default_factory=dict)

    def expect(self, name: str, action: str, now: float) -> object:
        """What the action gives, and what it changes."""
        is_mine = self.mine.get(name) == self.epoch
        if action == "take":
            if now < self.expires_at:
                return None
            self.epoch, self.expires_at = self.epoch + 1, now + LIFE_S
            self.mine[name] = self.epoch
            return self.epoch
        if is_mine and action == "renew":
            self.expires_at = now + LIFE_S
        if is_mine and action == "release":
            self.expires_at = 0.0
        return is_mine


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["take", "renew", "release", "commit"]),
        st.sampled_from([0.0, 0.5, 4.0, 9.5, 10.0, 25.0]),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_two_servers_in_any_order_never_both_commit(steps: list[tuple[str, str, float]]) -> None:
    engine, rules, now = create_engine("sqlite://"), Rules(), 1000.0
    with engine.connect() as conn:
        leases.ensure_table(conn)
        for name, action, pause_s in steps:
            now += pause_s
            did = act(conn, name, action, rules.mine.get(name, -1), now)
            assert did == rules.expect(name, action, now), (name, action, now)
            may_commit = [each for each in rules.mine.values() if leases.lock_epoch(conn, each)]
            assert len(may_commit) <= 1
    engine.dispose()


def act(conn: Connection, name: str, action: str, epoch: int, now: float) -> object:
    match action:
        case "take":
            return leases.take(conn, holder(name), LIFE_S, now)
        case "renew":
            return leases.renew(conn, epoch, LIFE_S, now)
        case "release":
            return leases.release(conn, epoch)
    return leases.lock_epoch(conn, epoch)


@contextmanager
def engine_of(url: str, idle_limit_s: float | None = None) -> Iterator[Engine]:
    engine = make_engine(url, begin="", pool_size=1, cache_kib=0)
    if idle_limit_s is not None:
        limit_idle(engine, idle_limit_s)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def leading(url: str, life_s: float = LIFE_S) -> Iterator[tuple[LeaderLease, list[LeaseRecord]]]:
    """A server that leads, and what it is told when it has lost the lease."""
    lost: list[LeaseRecord] = []
    lease = open_lease(url, life_s, lost.append)
    assert lease is not None
    try:
        assert lease.take()
        yield lease, lost
    finally:
        lease.close()


def depose(url: str) -> None:
    """Has another server take the lease, as if its time had passed."""
    with engine_of(url) as engine, engine.begin() as conn:
        assert leases.take(conn, holder("other"), LIFE_S, now=FAR_S) is not None


def set_mark(conn: Connection, name: str) -> None:
    conn.execute(schema.settings.insert().values(name=name, value=b""))


def num_marks(conn: Connection) -> int:
    marks = schema.settings.c.name.like("mark%")
    return int(conn.execute(select(func.count()).where(marks)).scalar_one())


def test_an_sqlite_file_has_no_lease(tmp_path: Path) -> None:
    assert open_lease(f"sqlite:///{tmp_path / 'x.db'}", LIFE_S, lambda _: None) is None


def test_a_late_commit_of_an_old_leader_keeps_nothing(empty_postgres_url: str) -> None:
    with leading(empty_postgres_url) as (lease, lost):
        db = Database(empty_postgres_url, lease=lease)
        try:
            db.write(set_mark, "mark 1")
            depose(empty_postgres_url)
            together = [db.submit(set_mark, f"mark late {number}") for number in range(5)]
            for each in together:
                with pytest.raises(LeaseLost):
                    each.result(60)
            assert db.read(num_marks) == 1
            assert lost[0].host == "host-other"
        finally:
            db.close()


def test_an_old_leader_cannot_migrate(empty_postgres_url: str) -> None:
    with leading(empty_postgres_url) as (lease, _):
        depose(empty_postgres_url)
        with pytest.raises(LeaseLost):
            Database(empty_postgres_url, lease=lease)
        with engine_of(empty_postgres_url) as engine, engine.connect() as conn:
            tables = text("SELECT count(*) FROM pg_tables WHERE tablename = 'operations'")
            assert conn.execute(tables).scalar() == 0


def test_a_commit_under_way_comes_before_a_takeover(empty_postgres_url: str) -> None:
    with (
        leading(empty_postgres_url) as (lease, _),
        engine_of(empty_postgres_url) as old,
        engine_of(empty_postgres_url) as new,
    ):
        with old.begin() as committing:
            assert leases.lock_epoch(committing, lease.epoch)
            with new.connect() as conn:
                conn.execute(text("SET lock_timeout = 50"))
                with pytest.raises(OperationalError, match="lock timeout"):
                    leases.take(conn, holder("b"), LIFE_S, now=FAR_S)
        with new.begin() as conn:
            assert leases.take(conn, holder("b"), LIFE_S, now=FAR_S) == lease.epoch + 1


def test_a_takeover_under_way_stops_a_commit(empty_postgres_url: str) -> None:
    with (
        leading(empty_postgres_url) as (lease, _),
        engine_of(empty_postgres_url) as old,
        engine_of(empty_postgres_url) as new,
        old.begin() as committing,
    ):
        locked: list[bool] = []
        thread = threading.Thread(
            target=lambda: locked.append(leases.lock_epoch(committing, lease.epoch))
        )
        with new.begin() as conn:
            assert leases.take(conn, holder("b"), LIFE_S, now=FAR_S) is not None
            thread.start()
            wait_until(lambda: is_anyone_waiting(empty_postgres_url))
            assert locked == []
        thread.join(60)
        assert locked == [False]


def is_anyone_waiting(url: str) -> bool:
    with psycopg.connect(url) as conn:
        found = conn.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        row = found.fetchone()
    return row is not None and row[0] > 0


def test_a_leader_stopped_inside_a_commit_does_not_hold_the_lease(empty_postgres_url: str) -> None:
    with (
        leading(empty_postgres_url) as (lease, _),
        engine_of(empty_postgres_url, idle_limit_s=0.3) as old,
        engine_of(empty_postgres_url) as new,
    ):
        stopped = old.connect()
        assert leases.lock_epoch(stopped, lease.epoch)
        with new.begin() as conn:  # waits until the database ends the silent transaction
            assert leases.take(conn, holder("b"), LIFE_S, now=FAR_S) == lease.epoch + 1
        with pytest.raises(DBAPIError, match="idle-in-transaction timeout"):
            stopped.execute(text("SELECT 1"))
        stopped.close()


def test_a_lease_whose_row_is_locked_is_not_taken_yet(empty_postgres_url: str) -> None:
    lease = open_lease(empty_postgres_url, 1.0, lambda _: None)
    assert lease is not None
    with engine_of(empty_postgres_url) as old, old.begin() as committing:
        assert leases.lock_epoch(committing, 0)
        assert not lease.take()
    assert lease.take()
    lease.close()


def test_a_leader_renews_its_lease(empty_postgres_url: str) -> None:
    with leading(empty_postgres_url, life_s=1.0) as (lease, lost):
        first = lease.read()
        wait_until(lambda: lease.read().expires_at > first.expires_at + 1.5)
        assert lease.read().epoch == first.epoch
        assert lost == []


def test_a_leader_finds_a_later_epoch_at_its_next_renewal(
    empty_postgres_url: str,
) -> None:
    with leading(empty_postgres_url, life_s=1.0) as (lease, lost):
        depose(empty_postgres_url)
        wait_until(lambda: bool(lost))
        assert not lease.is_current()


def test_a_closed_lease_is_free_at_once(empty_postgres_url: str) -> None:
    with leading(empty_postgres_url):
        pass
    with leading(empty_postgres_url) as (lease, _):
        assert lease.epoch == 2


def test_a_leader_without_its_database_is_not_current_until_it_renews(
    empty_postgres_url: str, postgres_url: str
) -> None:
    name = empty_postgres_url.partition("@/")[2].partition("?")[0]
    with (
        leading(empty_postgres_url, life_s=1.0) as (lease, lost),
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        assert lease.is_current()
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        wait_until(lambda: not lease.is_current())
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lease.is_current)
        assert (lease.read().epoch, lost) == (lease.epoch, [])


def test_commands_write_beside_a_leader(empty_postgres_url: str, tmp_path: Path) -> None:
    with leading(empty_postgres_url) as (lease, lost):
        db = Database(empty_postgres_url, lease=lease)
        made = create_key(tmp_path, empty_postgres_url, name="beside")
        db.write(set_mark, "mark")
        db.close()
        assert [each.name for each in list_keys(tmp_path, empty_postgres_url)] == ["beside"]
        assert made.info.tail
        assert lost == []
