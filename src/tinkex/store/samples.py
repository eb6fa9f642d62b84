"""Sampling requests: stored before they are acknowledged, numbered in the order they complete."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, bindparam, func, null, select, update

from tinkex.errors import ClientError
from tinkex.store import usage_sums
from tinkex.store.bulk_sql import BatchableWrite, insert_rows, update_rows
from tinkex.store.clock import steady_now
from tinkex.store.compiled_sql import Prepared
from tinkex.store.operations import SequenceError
from tinkex.store.request_ids import new_request_id
from tinkex.store.results import Result, keep, keep_all
from tinkex.store.schema import results, sample_marks, samples
from tinkex.store.upsert import insert_if_absent
from tinkex.store.usage_sums import Spent, UsageOf
from tinkex.types.requests import CLONE_STRIDE


class SampleDropped(ClientError):
    """410: the number was used so long ago that nothing of the request is kept."""

    code = "result-dropped"
    status = 410


MAX_CLONE = 2**63 // CLONE_STRIDE - 1  # whose numbers still fit 63 bits


class NewSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sampling request to store."""

    owner: str
    sampling_session_id: str
    seq_id: int
    body: bytes
    digest: bytes
    num_samples: int
    cost: int
    key_id: int | None = None
    run_id: str | None = None  # whose weights it samples from
    may_be_trimmed: bool = False  # the session is so old that rows of it may be gone


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request, without its body."""

    request_id: str
    owner: str
    sampling_session_id: str
    seq_id: int
    num_samples: int
    cost: int
    state: str
    created_at: float
    key_id: int | None = None
    run_id: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request of a sampling session."""

    number: int
    request_id: str
    is_failed: bool
    size_bytes: int


_COLUMNS = [samples.c[name] for name in Sample.__struct_fields__]
_STORED = (*Sample.__struct_fields__, "body", "body_hash")
_ADD, _ADD_ALL = insert_if_absent(samples, *_STORED), insert_rows(samples, *_STORED)
_LAST = Prepared(select(func.max(samples.c.completion)))
_CLOSING = (
    update(samples)
    .where(samples.c.request_id == bindparam("id"), samples.c.state == "queued")
    .values(state=bindparam("new_state"), completion=bindparam("number"), body=null())
)
_CLOSE, _CLOSE_ALL = Prepared(_CLOSING), update_rows(_CLOSING, "id", "new_state", "number")


def append_one(conn: Connection, new: NewSample) -> tuple[Sample, bool]:
    """Stores the request; returns it, and whether it is new.

    Raises:
        SequenceError: the number was used for another request.
        SampleDropped: the number was used and trimmed.
    """
    if new.may_be_trimmed:
        _refuse_trimmed(conn, new)
    sample = _new_sample(new)
    row = {**msgspec.structs.asdict(sample), "body": new.body, "body_hash": new.digest}
    if _ADD.rows(conn, **row):
        return sample, True
    return _same(conn, new), False


def _append_all(
    conn: Connection, calls: list[tuple[NewSample]]
) -> list[tuple[Sample, bool]] | None:
    """Stores all requests if all are new; else stores none."""
    made = [_new_sample(new) for (new,) in calls]
    rows = [
        (*msgspec.structs.astuple(sample), new.body, new.digest)
        for sample, (new,) in zip(made, calls, strict=True)
    ]
    is_clear = not any(new.may_be_trimmed for (new,) in calls)
    return [(each, True) for each in made] if is_clear and _ADD_ALL.did_all(conn, rows) else None


append = BatchableWrite(append_one, _append_all)


def get(conn: Connection, owner: str, request_id: str) -> Sample | None:
    """Returns the owner's request."""
    query = select(*_COLUMNS).where(samples.c.request_id == request_id, samples.c.owner == owner)
    row = conn.execute(query).first()
    return None if row is None else Sample(**row._mapping)


def bodies(conn: Connection, request_ids: list[str]) -> dict[str, bytes]:
    """Returns the bodies of these requests."""
    query = select(samples.c.request_id, samples.c.body).where(
        samples.c.request_id.in_(request_ids), samples.c.body.is_not(None)
    )
    return {row.request_id: bytes(row.body) for row in conn.execute(query)}


def queued(conn: Connection) -> list[Sample]:
    """Returns all unfinished requests, oldest first."""
    query = select(*_COLUMNS).where(samples.c.state == "queued").order_by(samples.c.created_at)
    return [Sample(**row._mapping) for row in conn.execute(query)]


def finish(
    conn: Connection,
    outcomes: list[tuple[Sample, Result]],
    spent: Mapping[str, Spent] | None = None,
) -> None:
    """Stores the results and numbers the completions; a request already closed is not changed.

    `spent` is the usage of requests, by their ids.
    """
    number = _LAST.rows(conn)[0][0] or 0
    states = ["failed" if result.encoding == "error" else "done" for _, result in outcomes]
    rows = [
        (sample.request_id, state, place)
        for place, ((sample, _), state) in enumerate(zip(outcomes, states, strict=True), number + 1)
    ]
    if _CLOSE_ALL.did_all(conn, rows):
        keep_all(conn, outcomes)
        _add_usage(conn, [sample for sample, _ in outcomes], spent or {})
        return
    closed = []
    for (sample, result), state in zip(outcomes, states, strict=True):
        if _CLOSE.count(conn, id=sample.request_id, new_state=state, number=number + 1):
            number += 1
            keep(conn, sample.owner, sample.request_id, result)
            closed.append(sample)
    _add_usage(conn, closed, spent or {})


def completions(
    conn: Connection, owner: str, sampling_session_id: str, clone: int, after: int, limit: int
) -> list[Completion]:
    """Returns the completions of one client of the session after its cursor, in order."""
    query = (
        select(
            samples.c.completion.label("number"),
            samples.c.request_id,
            (samples.c.state == "failed").label("is_failed"),
            func.coalesce(func.length(results.c.body), 0).label("size_bytes"),
        )
        .join(results, results.c.request_id == samples.c.request_id, isouter=True)
        .where(
            samples.c.owner == owner,
            samples.c.sampling_session_id == sampling_session_id,
            samples.c.completion > after,
            samples.c.seq_id >= clone * CLONE_STRIDE,
            samples.c.seq_id < (clone + 1) * CLONE_STRIDE,
        )
        .order_by(samples.c.completion)
        .limit(limit)
    )
    return [Completion(**row._mapping) for row in conn.execute(query)]


def _add_usage(conn: Connection, closed: list[Sample], spent: Mapping[str, Spent]) -> None:
    used = (
        (UsageOf(each.owner, each.key_id, each.run_id), spent[each.request_id])
        for each in closed
        if each.request_id in spent
    )
    usage_sums.add(conn, used)


def _refuse_trimmed(conn: Connection, new: NewSample) -> None:
    """Refuses a number whose request was trimmed; accepts one whose request is still stored."""
    same_number = (
        samples.c.sampling_session_id == new.sampling_session_id,
        samples.c.seq_id == new.seq_id,
    )
    mark = select(sample_marks.c.trimmed_seq).where(
        sample_marks.c.sampling_session_id == new.sampling_session_id,
        sample_marks.c.clone == new.seq_id // CLONE_STRIDE,
    )
    trimmed_seq = conn.execute(mark).scalar()
    if trimmed_seq is None or new.seq_id > trimmed_seq:
        return
    if conn.execute(select(samples.c.request_id).where(*same_number)).first() is None:
        raise SampleDropped(
            f"seq_id={new.seq_id} of {new.sampling_session_id} was used long ago and its result "
            "is no longer kept.",
            hint="Request the samples under a new number.",
        )


def _same(conn: Connection, new: NewSample) -> Sample:
    """Returns the request that has the number already, if it is the same request."""
    query = select(*_COLUMNS, samples.c.body_hash).where(
        samples.c.sampling_session_id == new.sampling_session_id, samples.c.seq_id == new.seq_id
    )
    values = dict(conn.execute(query).one()._mapping)
    if bytes(values.pop("body_hash")) != new.digest:
        raise SequenceError(
            f"seq_id={new.seq_id} of {new.sampling_session_id} was already used for another "
            "request.",
            hint="Give each request of a sampling session its own number.",
        )
    return Sample(**values)


def _new_sample(new: NewSample) -> Sample:
    return Sample(
        request_id=new_request_id(new.owner),
        owner=new.owner,
        sampling_session_id=new.sampling_session_id,
        seq_id=new.seq_id,
        num_samples=new.num_samples,
        cost=new.cost,
        state="queued",
        created_at=steady_now(),
        key_id=new.key_id,
        run_id=new.run_id,
    )
