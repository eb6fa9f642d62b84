"""Joining a sampler that was made elsewhere: in another process, or before a fork."""

from __future__ import annotations

import random

from tinkex.client.connection import Connection
from tinkex.client.runtime import Runtime
from tinkex.client.session import Session
from tinkex.config import Config
from tinkex.types.requests import CLONE_STRIDE, JoinSamplingSessionRequest
from tinkex.types.session import JoinSamplingSessionResponse

__all__ = ["join_sampler"]


def join_sampler(
    runtime: Runtime, config: Config, session_id: str, sampling_session_id: str
) -> tuple[Session, int]:
    """A session shared with its first owner, and the number of this clone in it."""

    async def join() -> tuple[Session, int]:
        connection = await Connection(runtime, config).open()
        session = Session(connection, session_id).keep_alive()
        if not connection.flags.sample_join_sampling_session:
            return session, random.randint(1, CLONE_STRIDE)  # noqa: S311 - a label, no secret
        joined = await connection.post(
            "/join_sampling_session",
            JoinSamplingSessionRequest(sampling_session_id=sampling_session_id),
            JoinSamplingSessionResponse,
            pool="session",
        )
        return session, joined.client_counter

    return runtime.submit(join()).result()
