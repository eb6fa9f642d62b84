"""One database: reads from any thread, writes in one thread that commits them in groups.

A write's future resolves only after its transaction is on disk, so the caller that waits for it may
promise it. Jobs that arrive while a commit runs share the next one, and the more there were, the
longer the next one waits for as many: what a commit costs the disk hardly depends on them. Those
that are alike are tried at once (see `bulk_sql`). First they run without savepoints; if one fails,
nothing is kept and they run again, each in a savepoint, so that it takes nothing else with it.
Blocking writes of threads (results) go before writes of requests (new work).
A write that frees space has the reserve of a full disk at its service (see `reserve`).
With a lease, each commit is made under its epoch or not at all (see `leases`).
Knows nothing of what the tables mean.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from tinkex import crashpoints
from tinkex.store import clock
from tinkex.store.bulk_sql import BatchableWrite, abort_on_refusal
from tinkex.store.leader_lease import LeaderLease
from tinkex.store.migrations import migrate
from tinkex.store.reserve import Reserve
from tinkex.store.sql_engine import BUSY_TIMEOUT_MS, limit_idle, make_engine, make_reader
from tinkex.store.sqlite_file import sqlite_file
from tinkex.store.sqlite_space import fold_log, shrink
from tinkex.store.store_errors import StoreError, as_store_error, is_disk_full

T = TypeVar("T")

_GROUP_LIMIT = 256
_BESIDE_URGENT = 32  # how many, going one by one, may delay a commit that a thread waits for
_BUSY_GROUP = 4  # jobs in a commit that show a busy store: the next one waits for more jobs
_WAIT_PER_JOB_S = 0.001
_MOST_WAIT_S = 0.012
_SAVEPOINT_COMMITS = 16  # after one in which a job failed: more may fail soon


@dataclass(slots=True)
class _Job:
    run: Callable[[Any], Any]
    future: Future[Any] | asyncio.Future[Any]
    is_bare: bool = False  # gets the driver's cursor and no transaction
    is_freeing: bool = False  # frees space, so it may use the reserve
    batchable: BatchableWrite[Any] | None = None  # what it runs, if many can run together
    args: tuple[Any, ...] = ()


class Database:
    """A migrated database at an SQLAlchemy URL (SQLite file or PostgreSQL).

    Beside an SQLite file up to `reserve_bytes` are kept aside for a full disk.
    """

    def __init__(
        self,
        url: str,
        *,
        readers: int = 4,
        reserve_bytes: int = 0,
        lease: LeaderLease | None = None,
    ) -> None:
        self.url = url
        self._check_lease = (lambda _conn: None) if lease is None else lease.check
        path = sqlite_file(url)
        self._reserve = Reserve(path, reserve_bytes) if path and reserve_bytes else None
        if self._reserve is not None:
            self._reserve.release_if_short()
        self._writer = make_engine(url, begin="BEGIN IMMEDIATE", pool_size=1, cache_kib=32 * 1024)
        if lease is not None:
            limit_idle(self._writer, lease.life_s)
        self._reader = make_reader(url, pool_size=readers + 4, cache_kib=2048)
        try:
            with self._writer.begin() as conn:
                is_migrated = bool(migrate(conn))
                clock.resume(conn)
                self._check_lease(conn)
        except BaseException:
            self._writer.dispose()
            raise
        if is_migrated:
            self._fold_log()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # None: wake up
        self._urgent: deque[_Job] = deque()
        self._commit_now = threading.Event()  # a thread waits, or as many as in the last commit
        self._closed = False
        self._num_last = 0  # jobs in the last commit
        self._savepoint_commits = 0  # the next commits, in which each job has a savepoint
        is_sqlite = self._writer.dialect.name == "sqlite"
        self._most_beside_urgent = _GROUP_LIMIT if is_sqlite else _BESIDE_URGENT
        self._read_pool = ThreadPoolExecutor(readers, thread_name_prefix="tinkex-store-read")
        self._thread = threading.Thread(target=self._write_loop, name="tinkex-store", daemon=True)
        self._thread.start()

    def read(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Returns the result of `run(connection, ...)`, a read, in the caller's thread."""
        try:
            with self._reader.connect() as conn:
                return run(conn, *args, **kwargs)
        except SQLAlchemyError as error:
            raise as_store_error(error) from error

    def submit(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        """Returns a future of the result of `run(connection, ...)`, resolved once it is on disk."""
        future: Future[T] = Future()
        self._hand_in(_Job(lambda conn: run(conn, *args, **kwargs), future))
        return future

    def write(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Returns the result of `run(connection, ...)` once it is on disk."""
        return self.submit(run, *args, **kwargs).result()

    def write_freeing(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """`write` for a job that frees space, here or in files later: works on a full disk too."""
        future: Future[T] = Future()
        self._hand_in(_Job(lambda conn: run(conn, *args, **kwargs), future, is_freeing=True))
        return future.result()

    async def ashrink(self) -> None:
        """Returns freed space to the disk, in slices between other writes."""
        path = sqlite_file(self.url)
        more = self._writer.dialect.name == "sqlite"
        while more and not self._closed:
            more = await self._arun_bare(lambda cursor: shrink(cursor, path, BUSY_TIMEOUT_MS))

    async def arestore_reserve(self) -> None:
        """Restores the reserve for a full disk, as far as there is space."""
        if (reserve := self._reserve) is not None:
            await self._arun_bare(lambda _cursor: reserve.restore())

    async def aread(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """`read` without blocking the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read_pool, lambda: self.read(run, *args, **kwargs))

    async def awrite(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """`write` without blocking the event loop; cancelling the caller does not undo it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job(lambda conn: run(conn, *args, **kwargs), future)
        if isinstance(run, BatchableWrite):
            job.batchable, job.args = run, args
        self._hand_in(job)
        return await future

    async def awrite_freeing(self, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """`write_freeing` without blocking the event loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._hand_in(_Job(lambda conn: run(conn, *args, **kwargs), future, is_freeing=True))
        return await future

    def close(self) -> None:
        """Finishes the submitted writes, then closes the database."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        self._commit_now.set()
        self._thread.join()
        self._read_pool.shutdown(wait=True)
        self._writer.dispose()
        self._reader.dispose()

    def _fold_log(self) -> None:
        """Has SQLite overwrite its pages now: until then what a migration removed can be read."""
        if self._writer.dialect.name != "sqlite":
            return
        connection = self._writer.raw_connection()
        try:
            fold_log(connection.cursor())
        finally:
            connection.close()

    async def _arun_bare(self, run: Callable[[Any], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._hand_in(_Job(run, future, is_bare=True, is_freeing=True))
        return await future

    def _hand_in(self, job: _Job) -> None:
        if self._closed:
            raise StoreError("The store is closed.", code="store-closed")
        if isinstance(job.future, Future):
            self._urgent.append(job)
            self._jobs.put(None)
            self._commit_now.set()
        else:
            self._jobs.put(job)
            if self._jobs.qsize() >= self._num_last:
                self._commit_now.set()

    def _next_group(self) -> list[_Job]:
        """Returns the jobs to commit next; waits for some, or until the store closes."""
        if self._num_last >= _BUSY_GROUP and self._jobs.qsize() < self._num_last:
            self._commit_now.wait(min(_MOST_WAIT_S, _WAIT_PER_JOB_S * self._num_last))
        waiting = [self._jobs.get()]
        jobs: list[_Job] = []
        self._commit_now.clear()
        while self._urgent:
            jobs.append(self._urgent.popleft())
        most = len(jobs) + self._most_beside_urgent if jobs else _GROUP_LIMIT
        while len(jobs) + len(waiting) < most and not self._jobs.empty():
            waiting.append(self._jobs.get())
        jobs += [job for job in waiting if job is not None]
        self._num_last = len(jobs)
        return jobs

    def _write_loop(self) -> None:
        while not (self._closed and self._jobs.empty()):
            jobs = self._next_group()
            together = [job for job in jobs if not job.is_bare]
            if together:
                self._commit(together)
            for job in jobs:
                if job.is_bare:
                    self._run_bare(job)

    def _commit(self, jobs: list[_Job]) -> None:
        """Commits the jobs together, or, if that fails, each alone, since one may be the cause."""
        outcomes: list[_Outcome] | None = self._attempt_without_savepoints(jobs)
        if outcomes is None:
            try:
                outcomes = self._transact(_attempt_all, jobs)
            except Exception as error:
                if len(jobs) > 1:
                    for job in jobs:
                        self._commit([job])
                    return
                outcomes = [error]
        outcomes = [
            self._with_reserve(job, outcome, self._attempt_alone)
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]
        crashpoints.passing("store.commit.after")
        _tell(jobs, outcomes)

    def _attempt_without_savepoints(self, jobs: list[_Job]) -> list[_Outcome] | None:
        """Returns the outcomes of the jobs if none failed; None if nothing was written."""
        if len(jobs) == 1:
            return None  # it needs no savepoint either way
        if self._savepoint_commits:
            self._savepoint_commits -= 1
            return None
        try:
            return self._transact(_run_without_savepoints, jobs)
        except Exception:  # the job that failed shows when they run again
            self._savepoint_commits = _SAVEPOINT_COMMITS
            return None

    def _transact(
        self, attempt: Callable[[Connection, list[_Job]], list[_Outcome]], jobs: list[_Job]
    ) -> list[_Outcome]:
        with self._writer.begin() as conn:
            outcomes = attempt(conn, jobs)
            _require_open(conn)
            crashpoints.passing("store.commit.before")
            self._check_lease(conn)  # last, since it holds up a takeover until the commit
        return outcomes

    def _attempt_alone(self, job: _Job) -> _Outcome:
        try:
            (outcome,) = self._transact(_attempt_all, [job])
        except Exception as error:
            return error
        return outcome

    def _run_bare(self, job: _Job) -> None:
        outcome = self._attempt_bare(job)
        _tell([job], [self._with_reserve(job, outcome, self._attempt_bare)])

    def _attempt_bare(self, job: _Job) -> _Outcome:
        try:
            connection = self._writer.raw_connection()
            try:
                return _Value(job.run(connection.cursor()))
            finally:
                connection.close()
        except Exception as error:
            return error

    def _with_reserve(
        self, job: _Job, outcome: _Outcome, attempt: Callable[[_Job], _Outcome]
    ) -> _Outcome:
        """Returns the outcome; tries again with the disk's reserve if that may help."""
        if self._reserve is None or not job.is_freeing or not is_disk_full(outcome):
            return outcome
        self._reserve.release()
        try:
            return attempt(job)
        finally:
            self._reserve.restore()


@dataclass(slots=True)
class _Value:
    value: Any


_Outcome = _Value | Exception


def _run_without_savepoints(conn: Connection, jobs: list[_Job]) -> list[_Outcome]:
    """Returns the outcome of each job, without savepoints; raises if one fails."""
    with abort_on_refusal(conn):
        outcomes: dict[int, _Outcome] = dict(_attempt_alike(conn, jobs))
        for place, job in enumerate(jobs):
            if place not in outcomes:
                outcomes[place] = _Value(job.run(conn))
                _require_open(conn)  # or the next one would be kept by itself
    return [outcomes[place] for place in range(len(jobs))]


def _attempt_all(conn: Connection, jobs: list[_Job]) -> list[_Outcome]:
    """Returns the outcome of each job: batchable ones run at once, the others one by one."""
    outcomes: dict[int, _Outcome] = dict(_attempt_alike(conn, jobs))
    for place, job in enumerate(jobs):
        if place not in outcomes:
            outcomes[place] = _attempt(conn, job, alone=len(jobs) == 1)
    return [outcomes[place] for place in range(len(jobs))]


def _attempt_alike(conn: Connection, jobs: list[_Job]) -> Iterator[tuple[int, _Value]]:
    """Returns the indexes of those jobs that could run at once, and their results."""
    alike: dict[BatchableWrite[Any], list[int]] = {}
    for place, job in enumerate(jobs):
        if job.batchable is not None:
            alike.setdefault(job.batchable, []).append(place)
    for batchable, places in alike.items():
        if (values := batchable.many(conn, [jobs[place].args for place in places])) is not None:
            yield from zip(places, map(_Value, values), strict=True)


def _attempt(conn: Connection, job: _Job, *, alone: bool) -> _Outcome:
    if alone:
        return _Value(job.run(conn))
    # Plain SQL: SQLAlchemy's savepoints cost more than most jobs.
    driver: Any = conn.connection.driver_connection
    driver.execute("SAVEPOINT job")
    outcome: _Outcome
    try:
        outcome = _Value(job.run(conn))
    except Exception as error:
        if conn.invalidated or not conn.in_transaction():
            raise
        _require_open(conn)
        driver.execute("ROLLBACK TO SAVEPOINT job")
        outcome = error
    driver.execute("RELEASE SAVEPOINT job")
    return outcome


def _require_open(conn: Connection) -> None:
    """Fails if the database has ended the transaction on its own.

    SQLite does so when the disk is full or fails: what ran before is undone, what runs after
    would be kept one by one, and a commit of nothing would look like success.
    """
    driver = conn.connection.dbapi_connection
    if conn.dialect.name == "sqlite" and not getattr(driver, "in_transaction", True):
        raise StoreError("The database aborted the transaction.")


def _tell(jobs: list[_Job], outcomes: list[_Outcome]) -> None:
    """Resolves the futures; those of a loop in one call, since waking it is expensive."""
    of_loops: dict[asyncio.AbstractEventLoop, list[tuple[_Job, _Outcome]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if isinstance(job.future, Future):
            _resolve(job, outcome)
        else:
            of_loops.setdefault(job.future.get_loop(), []).append((job, outcome))
    for loop, answered in of_loops.items():
        with suppress(RuntimeError):  # the loop has ended, and with it the waiting tasks
            loop.call_soon_threadsafe(_resolve_all, answered)


def _resolve_all(answered: list[tuple[_Job, _Outcome]]) -> None:
    for job, outcome in answered:
        if not job.future.done():  # the waiting task may be cancelled
            _resolve(job, outcome)


def _resolve(job: _Job, outcome: _Outcome) -> None:
    if isinstance(outcome, _Value):
        job.future.set_result(outcome.value)
    elif isinstance(outcome, SQLAlchemyError):
        wrapped = as_store_error(outcome)
        wrapped.__cause__ = outcome
        job.future.set_exception(wrapped)
    else:
        job.future.set_exception(outcome)
