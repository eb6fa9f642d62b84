"""Sampling requests: kept before they are promised, numbered in the order they complete."""

from __future__ import annotations

import time
import uuid

import msgspec
from sqlalchemy import Connection, func, select, update

from tinkex.store.operations import SequenceError
from tinkex.store.results import Result, keep
from tinkex.store.schema import results, samples

CLONE_STRIDE = (
    1_000_000_000  # client n of a sampling session numbers its requests from n times this
)


class NewSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sampling request to keep."""

    owner: str
    sampling_session_id: str
    seq_id: int
    body: bytes
    digest: bytes
    num_samples: int
    cost: int


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


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request of a sampling session."""

    number: int
    request_id: str
    is_failed: bool
    size_bytes: int


_COLUMNS = [samples.c[name] for name in Sample.__struct_fields__]


def append(conn: Connection, new: NewSample) -> tuple[Sample, bool]:
    """The request, and whether it came for the first time.

    Raises:
        SequenceError: the number was used for another request.
    """
    query = select(*_COLUMNS, samples.c.body_hash).where(
        samples.c.sampling_session_id == new.sampling_session_id, samples.c.seq_id == new.seq_id
    )
    row = conn.execute(query).first()
    if row is not None:
        values = dict(row._mapping)
        if bytes(values.pop("body_hash")) != new.digest:
            raise SequenceError(
                f"seq_id={new.seq_id} of {new.sampling_session_id} was already used for another "
                "request.",
                hint="Give each request of a sampling session its own number.",
            )
        return Sample(**values), False
    sample = Sample(
        request_id=uuid.uuid4().hex,
        owner=new.owner,
        sampling_session_id=new.sampling_session_id,
        seq_id=new.seq_id,
        num_samples=new.num_samples,
        cost=new.cost,
        state="queued",
        created_at=time.time(),
    )
    values = msgspec.structs.asdict(sample)
    conn.execute(samples.insert().values(**values, body=new.body, body_hash=new.digest))
    return sample, True


def get(conn: Connection, owner: str, request_id: str) -> Sample | None:
    """The owner's request."""
    query = select(*_COLUMNS).where(samples.c.request_id == request_id, samples.c.owner == owner)
    row = conn.execute(query).first()
    return None if row is None else Sample(**row._mapping)


def bodies(conn: Connection, request_ids: list[str]) -> dict[str, bytes]:
    """The bodies of these requests."""
    query = select(samples.c.request_id, samples.c.body).where(
        samples.c.request_id.in_(request_ids), samples.c.body.is_not(None)
    )
    return {row.request_id: bytes(row.body) for row in conn.execute(query)}


def queued(conn: Connection) -> list[Sample]:
    """Everything not finished, oldest first."""
    query = select(*_COLUMNS).where(samples.c.state == "queued").order_by(samples.c.created_at)
    return [Sample(**row._mapping) for row in conn.execute(query)]


def finish(conn: Connection, outcomes: list[tuple[Sample, Result]]) -> None:
    """Keeps the results and numbers the completions; a request already closed stays as it was."""
    last = conn.execute(select(func.max(samples.c.completion))).scalar() or 0
    for sample, result in outcomes:
        state = "failed" if result.encoding == "error" else "done"
        closed = conn.execute(
            update(samples)
            .where(samples.c.request_id == sample.request_id, samples.c.state == "queued")
            .values(state=state, completion=last + 1, body=None)
        )
        if closed.rowcount:
            last += 1
            keep(conn, sample.owner, sample.request_id, result)


def completions(
    conn: Connection, owner: str, sampling_session_id: str, clone: int, after: int, limit: int
) -> list[Completion]:
    """What one client of the session got done after its cursor, in order."""
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
