"""Which of the servers of one PostgreSQL database works: the one that holds the leader's lease.

A second server is refused, unless it was started to stand by. An SQLite file needs no lease: the
lock of the data folder keeps a second server out.
"""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime
from typing import NoReturn

from starlette.types import ASGIApp, Receive, Scope, Send

from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.data_folder import holds_files_of
from tinkex.server.errors import LeaseNotRenewed, error_response
from tinkex.store.leader_lease import LeaderLease
from tinkex.store.leases import LeaseRecord
from tinkex.store.opening import open_lease

__all__ = [
    "ALIVE_PATH",
    "LeaseGate",
    "await_folder",
    "check_folder",
    "described",
    "lease_of",
    "take_or_refuse",
]

ALIVE_PATH = "/api/v1/version"
"""Answered by every server whose process runs, whether it leads or not."""

EXIT_LOST = 6
_LOOK_EVERY_S = 0.25
_FOLDER_WAIT_S = 3.0

_logger = logging.getLogger(__name__)


def lease_of(config: ServerConfig) -> LeaderLease | None:
    """The lease of the config's database, not taken yet; None for an SQLite file.

    Raises:
        ConfigError: the database cannot be opened, or a server cannot stand by with this config.
    """
    if config.lease_s < 1:
        raise ConfigError(
            f"A lease of {config.lease_s:g} s is too short to be renewed in time.",
            hint="Choose a --lease-s of at least 1.",
            code="bad-lease",
        )
    lease = open_lease(config.url_of_database, config.lease_s, _end_deposed)
    if lease is None and config.is_standby:
        raise ConfigError(
            "A standby needs a PostgreSQL database that it shares with the leader.",
            hint="Give --database-url postgresql://..., or leave out --standby.",
            code="standby-needs-postgresql",
        )
    return lease


def take_or_refuse(lease: LeaderLease) -> None:
    """Returns once the lease is this server's. A holder that is gone is waited for, up to the end
    of its lease.

    Raises:
        ConfigError: the holder renews its lease, so it works.
    """
    before = lease.read()
    is_logged = False
    while not lease.take():
        now = lease.read()
        if (now.epoch, now.expires_at) > (before.epoch, before.expires_at):
            raise ConfigError(
                f"Another server leads this database: {described(now)}.",
                hint="Stop it, or start this one with --standby: it takes over when that one ends.",
                code="database-in-use",
            )
        if not is_logged:
            _logger.info("Waiting for the lease, which another server has (%s).", described(now))
            is_logged = True
        time.sleep(_LOOK_EVERY_S)


def await_folder(config: ServerConfig, lease: LeaderLease) -> None:
    """`check_folder` for a standby, after a moment for a leader that starts at the same time.

    Raises:
        ConfigError: the data folder is another one.
    """
    deadline = time.monotonic() + _FOLDER_WAIT_S
    while True:
        try:
            check_folder(config, lease.read())
            return
        except ConfigError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_EVERY_S)


def check_folder(config: ServerConfig, record: LeaseRecord) -> None:
    """Returns if the data folder is the one that the servers of this database have used.

    Raises:
        ConfigError: it is not, and this server was started to stand by. Another one may have been
            given a new folder on purpose, so it is only warned.
    """
    if config.depot is not None:  # the folders are there, and each server has a disk of its own
        return
    if record.epoch == 0 or holds_files_of(config.data_dir, record.store_id):
        return
    about = f"The data folder {config.data_dir} is not the one that this database was used with"
    if config.is_standby:
        raise ConfigError(
            f"{about}.",
            hint="Give the leader's --data-dir, on storage that both servers mount, or give both "
            "the same --depot.",
            code="data-dir-not-shared",
        )
    _logger.warning("%s: files of earlier runs are missing unless they were copied.", about)


def described(record: LeaseRecord) -> str:
    """The holder of the lease for people."""
    since = datetime.fromtimestamp(record.since or 0.0, UTC)
    return f"host {record.host}, process {record.pid}, since {since:%Y-%m-%d %H:%M:%S} UTC"


class LeaseGate:
    """Answers 503 while this server cannot be sure that it leads."""

    def __init__(self, app: ASGIApp, lease: LeaderLease) -> None:
        self._app = app
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == ALIVE_PATH or self._lease.is_current():
            await self._app(scope, receive, send)
            return
        refusal = LeaseNotRenewed("The server could not renew its lease with the database.")
        await error_response(refusal)(scope, receive, send)


def _end_deposed(record: LeaseRecord) -> NoReturn:
    """Ends this process at once: no client may see what it has not committed."""
    _logger.error(
        "Another server has taken over this database (%s). This one ends; it has committed nothing "
        "since, and what its clients wait for is answered by the other.",
        described(record),
    )
    os._exit(EXIT_LOST)
