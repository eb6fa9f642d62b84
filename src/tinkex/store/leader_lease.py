"""One server's hold on the leader's lease of a PostgreSQL database.

A thread renews the lease on a connection of its own, so a long queue of writes does not delay it.
`is_current` is answered from this process's clock and never waits: it turns false before the lease
can end, also while the database does not answer. A server that finds a later epoch than its own has
lost the lease for good, and `on_lost` is called. Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from tinkex.store import leases
from tinkex.store.clock import seconds_up
from tinkex.store.leases import LeaseHolder, LeaseRecord
from tinkex.store.migrations import refuse_newer
from tinkex.store.sql_engine import make_lease_engine
from tinkex.store.store_errors import StoreError

__all__ = ["LeaderLease", "LeaseLost", "OnLost"]

_RENEWALS_PER_LIFE = 4
_SAFE_SHARE = 0.9  # of its life, since the last renewal was sent, the lease surely holds
_RETRY_S = 0.5
_LOCK_TIMEOUT = "55P03"  # PostgreSQL's code
_CREATION_LOCK = 7_236_584_117  # two servers that make the table at the same time take turns

_logger = logging.getLogger(__name__)

OnLost = Callable[[LeaseRecord], None]


class LeaseLost(StoreError):
    """Another server is the leader now; nothing of the job was written."""

    code = "lease-lost"
    default_hint = "Try again; the server that leads now answers."


class LeaderLease:
    """The lease of one database as one server sees it. `on_lost` may end the process.

    Raises:
        SQLAlchemyError: the database cannot be reached.
        ConfigError: a newer version made it.
    """

    def __init__(self, url: str, life_s: float, on_lost: OnLost) -> None:
        self.life_s = life_s
        self.epoch = 0  # as long as it is not ours
        self._on_lost = on_lost
        self._holder = LeaseHolder(
            holder=uuid.uuid4().hex, host=socket.gethostname(), pid=os.getpid()
        )
        self._engine = make_lease_engine(url, life_s)
        self._renewed_at = -float("inf")
        self._is_failing = False  # the last renewal did
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_all, name="tinkex-lease", daemon=True)
        with self._engine.begin() as conn:
            refuse_newer(conn)
            conn.execute(text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
            leases.ensure_table(conn)

    @property
    def is_held(self) -> bool:
        """Whether this server took the lease; it may have lost it since."""
        return self.epoch > 0

    def read(self) -> LeaseRecord:
        """Returns the lease as stored in the database."""
        with self._engine.connect() as conn:
            return leases.read(conn)

    def take(self) -> bool:
        """Takes the lease if possible, and then renews it; returns whether it is held.

        A leader that was stopped inside a commit has the row locked until PostgreSQL ends its
        connection: until then the lease is not taken.
        """
        sent_at = seconds_up()
        try:
            with self._engine.begin() as conn:
                epoch = leases.take(conn, self._holder, self.life_s)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_TIMEOUT:
                return False
            raise
        if epoch is None:
            return False
        self.epoch, self._renewed_at = epoch, sent_at
        self._thread.start()
        return True

    def is_current(self) -> bool:
        """Whether no other server can have taken the lease yet."""
        return seconds_up() < self._renewed_at + _SAFE_SHARE * self.life_s

    def check(self, conn: Connection) -> None:
        """Keeps other servers from taking the lease until the transaction ends.

        Raises:
            LeaseLost: one has taken it already.
        """
        if not leases.lock_epoch(conn, self.epoch):
            self._lose()

    def close(self) -> None:
        """Releases the lease if it is held, so that the next server need not wait for its end."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.is_held:
            try:
                with self._engine.begin() as conn:
                    leases.release(conn, self.epoch)
            except SQLAlchemyError as error:
                _logger.warning("The lease was not released, and runs out by itself: %s", error)
        self._engine.dispose()

    def _renew_all(self) -> None:
        wait_s = self.life_s / _RENEWALS_PER_LIFE
        while not self._ended.wait(wait_s):
            is_renewed = self._renew()
            wait_s = self.life_s / _RENEWALS_PER_LIFE if is_renewed else _RETRY_S

    def _renew(self) -> bool:
        was_current, sent_at = self.is_current(), seconds_up()
        try:
            with self._engine.begin() as conn:
                is_mine = leases.renew(conn, self.epoch, self.life_s)
            if not is_mine:
                self._lose()
        except LeaseLost:
            self._ended.set()
            return False
        except SQLAlchemyError as error:
            if not self._is_failing:  # one line, however long it lasts
                reason = (str(getattr(error, "orig", None) or error).splitlines() or [""])[0]
                _logger.warning("The leader's lease was not renewed; trying again: %s", reason)
            self._is_failing = True
            return False
        self._renewed_at, self._is_failing = sent_at, False
        if not was_current:
            _logger.warning("The leader's lease was renewed late; no other server had taken it.")
        return True

    def _lose(self) -> None:
        record = self.read()
        self._renewed_at = -float("inf")
        self._on_lost(record)
        raise LeaseLost("Another server has taken over this database.")
