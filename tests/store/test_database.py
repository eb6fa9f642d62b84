"""One writer, group commit, and nothing promised before it is on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text

from tests.store.work import OWNER, add_session
from tinkex.errors import ClientError
from tinkex.store import Database, StoreError, sessions
from tinkex.store.migrations import MIGRATIONS, migrate


def count(conn: Connection) -> int:
    return int(conn.execute(text("select count(*) from sessions")).scalar_one())


@contextmanager
def commit_running(db: Database) -> Iterator[None]:
    """Inside, a commit runs: what is handed in there shares the next one."""
    begun, gate = threading.Event(), threading.Event()
    holding = db.submit(lambda _: (begun.set(), gate.wait(10)))
    assert begun.wait(10)
    yield
    gate.set()
    holding.result(10)


def test_writes_from_many_threads_are_all_kept(db: Database) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: db.write(add_session), range(200)))
    assert len(set(made)) == 200
    assert db.read(count) == 200


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_what_is_read_at_once_is_of_one_moment(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A poll reads the result and then the request: it must not find one finished without one."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    if backend == "postgresql":
        url = request.getfixturevalue("empty_postgres_url")
    with closing(Database(url)) as db:

        def look_twice(conn: Connection) -> tuple[int, int]:
            first = count(conn)
            db.write(add_session)
            return first, count(conn)

        assert db.read(look_twice) == (0, 0)
        assert db.read(count) == 1


def test_a_job_that_fails_takes_no_other_with_it(db: Database) -> None:
    def fail(conn: Connection) -> None:
        add_session(conn)
        raise ClientError("no")

    with commit_running(db):
        futures = [db.submit(add_session), db.submit(fail), db.submit(add_session)]
    assert futures[0].result()
    with pytest.raises(ClientError):
        futures[1].result()
    assert futures[2].result()
    assert db.read(count) == 2


def test_after_a_job_failed_commits_are_careful_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a caller whose writes fail would have the writes of all done twice."""
    monkeypatch.setattr("tinkex.store.database._SAVEPOINT_COMMITS", 3)
    db = Database(f"sqlite:///{tmp_path / 'store.db'}")
    runs: list[str] = []

    def commit_together(*names: str) -> list[int]:
        """How often each of these ran, sharing one commit; those called bad fail."""
        runs.clear()
        with commit_running(db):
            futures = [db.submit(run, name) for name in names]
        for name, future in zip(names, futures, strict=True):
            error = future.exception(10)
            assert (error is not None) is (name == "bad")
        return [runs.count(name) for name in names]

    def run(_conn: Connection, name: str) -> None:
        runs.append(name)
        if name == "bad":
            raise ClientError("no")

    assert commit_together("a", "b") == [1, 1]
    assert commit_together("a", "bad", "b") == [2, 2, 1], "the first try ends at the bad one"
    for _ in range(3):
        assert commit_together("a", "bad", "b") == [1, 1, 1], "each in a savepoint of its own"
    assert commit_together("a", "b") == [1, 1]
    assert commit_together("a", "bad", "b") == [2, 2, 1], "all are trusted again"
    db.close()


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A store whose last commit had eight jobs, and which waits half a minute for as many."""
    monkeypatch.setattr("tinkex.store.database._WAIT_PER_JOB_S", 30.0)
    monkeypatch.setattr("tinkex.store.database._MOST_WAIT_S", 30.0)
    db = Database(f"sqlite:///{tmp_path / 'store.db'}")
    with commit_running(db):
        crowd = [db.submit(add_session) for _ in range(8)]
    for each in crowd:
        each.result(10)
    yield db
    db.close()


def test_a_write_with_a_waiting_thread_is_committed_at_once(patient: Database) -> None:
    async def scenario() -> None:
        request = asyncio.create_task(patient.awrite(add_session))
        await asyncio.sleep(0)  # it waits for as many as came before
        await asyncio.to_thread(patient.write, add_session)
        await request

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert patient.read(count) == 10


def test_a_commit_does_not_wait_for_writes_that_have_arrived(patient: Database) -> None:
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(patient.awrite(add_session))
                await asyncio.sleep(0.02)  # the store is waiting

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert patient.read(count) == 16


def test_a_transaction_that_the_database_ended_keeps_nothing_of_the_jobs_after_it(
    db: Database,
) -> None:
    """Even if the job that met it says nothing: what runs after it would be kept one by one."""

    def lose(conn: Connection) -> None:
        conn.connection.driver_connection.execute("ROLLBACK")

    with commit_running(db):
        futures = [db.submit(add_session), db.submit(lose), db.submit(add_session)]
    assert futures[0].result(10) != futures[2].result(10)
    with pytest.raises(StoreError):
        futures[1].result(10)
    assert db.read(count) == 2


def test_what_a_thread_waits_for_goes_before_what_requests_wait_for(db: Database) -> None:
    order: list[str] = []

    async def scenario() -> None:
        gate = threading.Event()
        requests = [asyncio.create_task(db.awrite(lambda _: gate.wait()))]
        await asyncio.sleep(0.05)  # the writer is in the midst of a commit now
        for _ in range(3):
            requests.append(asyncio.create_task(db.awrite(lambda _: order.append("request"))))
        await asyncio.sleep(0)
        thread = asyncio.create_task(asyncio.to_thread(db.write, lambda _: order.append("thread")))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(thread, *requests)

    asyncio.run(scenario())
    assert order == ["thread", "request", "request", "request"]


def test_all_that_wait_share_the_next_commit_with_a_thread(tmp_path: Path) -> None:
    """What piled up while the disk was slow is no slower for a thread that waits as well."""
    db = Database(f"sqlite:///{tmp_path / 'store.db'}")
    commits: list[int] = []
    event.listen(db._writer, "commit", lambda _conn: commits.append(1))
    begun, gate = threading.Event(), threading.Event()
    slow = db.submit(lambda _: (begun.set(), gate.wait(10)))
    assert begun.wait(10)

    async def scenario() -> None:
        requests = [asyncio.create_task(db.awrite(lambda _: None)) for _ in range(200)]
        await asyncio.sleep(0)  # all are handed in
        thread = db.submit(lambda _: None)
        gate.set()
        await asyncio.gather(*requests, asyncio.wrap_future(thread))

    asyncio.run(scenario())
    slow.result(10)
    db.close()
    assert len(commits) == 2


def test_a_database_error_becomes_one_of_ours(db: Database) -> None:
    with pytest.raises(StoreError) as failure:
        db.write(lambda conn: conn.execute(text("insert into nowhere values (1)")))
    assert failure.value.__cause__ is not None
    assert db.write(add_session)


def test_a_write_is_durable_and_visible_when_its_future_resolves(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    first, second = Database(url), Database(url)
    session_id = first.write(add_session)
    assert second.read(sessions.get, OWNER, session_id) is not None
    pragmas = second.read(
        lambda conn: [
            conn.execute(text(f"pragma {p}")).scalar() for p in ("journal_mode", "synchronous")
        ]
    )
    assert pragmas == ["wal", 2]
    first.close()
    second.close()


def test_reads_go_on_while_a_write_runs(db: Database) -> None:
    gate = threading.Event()
    writing = db.submit(lambda _conn: gate.wait())
    began = time.monotonic()
    assert db.read(count) == 0
    assert time.monotonic() - began < 1
    gate.set()
    writing.result()


def test_closing_finishes_what_was_handed_in(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    db = Database(url)
    futures = [db.submit(add_session) for _ in range(50)]
    db.close()
    assert all(future.result() for future in futures)
    with pytest.raises(StoreError, match="closed"):
        db.submit(add_session)


def test_migrations_run_once_and_are_recorded(db: Database) -> None:
    assert db.write(migrate) == []
    names = db.read(lambda conn: list(conn.execute(text("select name from migrations")).scalars()))
    assert names == [step.__name__ for step in MIGRATIONS]
